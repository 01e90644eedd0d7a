#include "kernels/opencl/device/opencl_device.h"

#include <cstring>
#include <new>
#include <utility>

#include "base/text.h"
#include "kernels/opencl/device/opencl_order.h"
#include "kernels/opencl/device/requirements.h"
#include "kernels/opencl/ops/opencl_ops.h"
#include "oracle/machine/detect.h"

namespace moracle {
namespace {

Status check_device(int index, const std::vector<GpuInfo>& there) {
  if (opencl::api()) return opencl::check_requirements(index, there);
  Error error = opencl::api().error();
  error.place = str("device 'opencl:", index, "'");
  return error;
}

}  // namespace

OpenClDevice::OpenClDevice(int index, const DeviceOptions& options)
    : queue_{.cl = &*opencl::api(), .index = index},
      programs_(queue_, options.kernel_cache, options.compiling),
      staging_(queue_),
      ops_(std::make_unique<OpenClOps>(queue_, device_errors_)),
      host_threads_(options.run_tasks ? ThreadPool(options.threads, options.run_tasks)
                                      : ThreadPool(options.threads)) {}

Result<std::shared_ptr<Device>> OpenClDevice::open(int index, const DeviceOptions& options) {
  if (options.allocate) {
    return Error{ErrorKind::kUnsupported, "", "allocate",
                 str("no allocator on opencl:", index,
                     ": kernels reach only memory of the device's own context"),
                 "one is set"};
  }
  const std::vector<GpuInfo> there = detect_opencl();
  MORACLE_CHECK(check_device(index, there));
  std::shared_ptr<OpenClDevice> device(new OpenClDevice(index, options));
  const GpuFeature features = device->queue_.features = there[index].features;
  device->queue_.is_cpu = missing(GpuFeature::kCpuCores, features) == GpuFeature::kNone;
  MORACLE_CHECK(device->host_threads_.started());
  MORACLE_CHECK(device->start());
  return std::shared_ptr<Device>(std::move(device));
}

Status OpenClDevice::start() {
  using opencl::value_of;
  queue_.programs = &programs_;
  const opencl::Api& cl = *queue_.cl;
  const cl_device_id id = queue_.device = opencl::device_ids()[queue_.index];
  queue_.compute_units = value_of<cl_uint>(cl, id, CL_DEVICE_MAX_COMPUTE_UNITS);
  queue_.max_group = static_cast<int64_t>(value_of<size_t>(cl, id, CL_DEVICE_MAX_WORK_GROUP_SIZE));
  queue_.local_bytes = static_cast<int64_t>(value_of<cl_ulong>(cl, id, CL_DEVICE_LOCAL_MEM_SIZE));
  queue_.unified = value_of<cl_bool>(cl, id, CL_DEVICE_HOST_UNIFIED_MEMORY) == CL_TRUE;
  queue_.divides_exactly = (value_of<cl_device_fp_config>(cl, id, CL_DEVICE_SINGLE_FP_CONFIG) &
                            CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0;
  const std::string version =
      opencl::text_of(cl, id, CL_DEVICE_OPENCL_C_VERSION);  // "OpenCL C 3.0 ..."
  queue_.language_3 = version.find("OpenCL C 3") != version.npos;
  cl_int code = CL_SUCCESS;
  queue_.context = cl.clCreateContext(nullptr, 1, &queue_.device, nullptr, nullptr, &code);
  MORACLE_CHECK(opencl::check(code, "clCreateContext"));
  const cl_queue_properties properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
  queue_.own = cl.clCreateCommandQueueWithProperties(queue_.context, id, properties, &code);
  if (Status made = opencl::check(code, "clCreateCommandQueueWithProperties"); !made) {
    static_cast<void>(cl.clReleaseContext(queue_.context));
    return made;
  }
  memory_ = std::make_shared<opencl::Memory>(queue_);
  queue_.memory = memory_.get();
  return device_errors_.open(queue_);
}

OpenClDevice::~OpenClDevice() {
  if (memory_ != nullptr) static_cast<void>(queue_.cl->clFinish(queue_.own));
}

std::string OpenClDevice::name() const {
  return str("opencl:", queue_.index);
}

Ops& OpenClDevice::ops() {
  return *ops_;
}

Result<Buffer> OpenClDevice::allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  const DeviceLock lock = this->lock();
  MORACLE_TRY(Buffer buffer, memory_->allocate(bytes));
  constexpr size_t kPattern = opencl::Memory::kUnit;
  const std::byte zeros[kPattern] = {};
  MORACLE_OPENCL(queue_.cl->clEnqueueSVMMemFill(queue_.own, buffer.data(), zeros, kPattern,
                                                opencl::Memory::whole_units(bytes), 0, nullptr,
                                                nullptr));
  // Finish: every queue must see the zeros, not only this one. Some drivers refuse memory only now.
  MORACLE_OPENCL(queue_.cl->clFinish(queue_.own));
  return buffer;
}

namespace {

// Memory mapped for writing. The host keeps the pointer: SVM has one address.
class Mapped : public HostAccess {
 public:
  Mapped(OpenClDevice& device, void* data) : device_(device), data_(data) {}
  ~Mapped() override { static_cast<void>(end()); }
  Status end() override {
    if (data_ == nullptr) return {};
    const DeviceLock lock = device_.lock();
    const opencl::Queue& queue = device_.queue();
    void* const data = std::exchange(data_, nullptr);
    MORACLE_OPENCL(queue.cl->clEnqueueSVMUnmap(queue.own, data, 0, nullptr, nullptr));
    return opencl::check(queue.cl->clFinish(queue.own), "clFinish");
  }

 private:
  OpenClDevice& device_;  // outlives its buffers' accesses
  void* data_;
};

}  // namespace

Result<std::unique_ptr<HostAccess>> OpenClDevice::host_access(const Buffer& buffer) {
  if (!queue_.unified || buffer.bytes() == 0) return std::unique_ptr<HostAccess>();
  const DeviceLock lock = this->lock();
  MORACLE_OPENCL(queue_.cl->clEnqueueSVMMap(queue_.own, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE,
                                            buffer.data(), buffer.bytes(), 0, nullptr, nullptr));
  return std::unique_ptr<HostAccess>(std::make_unique<Mapped>(*this, buffer.data()));
}

Status OpenClDevice::upload(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes == 0) return {};
  const DeviceLock lock = this->lock();
  MORACLE_CHECK(staging_.enqueue(to, from, bytes, stream));
  return opencl::check(queue_.cl->clFinish(queue_.of(stream)), "clFinish");
}

Status OpenClDevice::enqueue_upload(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes == 0) return {};
  const DeviceLock lock = this->lock();
  return staging_.enqueue(to, from, bytes, stream);
}

Status OpenClDevice::download(void* to, const void* from, size_t bytes, Stream stream) {
  return copy(to, from, bytes, stream);
}

Status OpenClDevice::read(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return {};
  return opencl::check(
      queue_.cl->clEnqueueSVMMemcpy(queue_.own, CL_TRUE, to, from, bytes, 0, nullptr, nullptr),
      "clEnqueueSVMMemcpy");
}

Status OpenClDevice::copy(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes == 0) return {};
  const DeviceLock lock = this->lock();
  return opencl::check(queue_.cl->clEnqueueSVMMemcpy(queue_.of(stream), CL_FALSE, to, from, bytes,
                                                     0, nullptr, nullptr),
                       "clEnqueueSVMMemcpy");
}

Result<std::unique_ptr<Timeline>> OpenClDevice::timeline(Stream stream) {
  return opencl::timeline(queue_, stream);
}

// Page-aligned, so that drivers may pin it while they copy.
Result<Buffer> OpenClDevice::allocate_host(size_t bytes) {
  if (bytes == 0) return Buffer();
  constexpr std::align_val_t kPage{4096};
  void* const data = ::operator new(bytes, kPage, std::nothrow);
  if (data == nullptr)
    return Error{ErrorKind::kOutOfMemory, "", name(), str(bytes, " bytes of host memory"),
                 "the system refused it"};
  std::memset(data, 0, bytes);
  return Buffer(data, bytes,
                std::shared_ptr<void>(data, [](void* p) { ::operator delete(p, kPage); }));
}

std::shared_ptr<StreamOrder> OpenClDevice::stream_order() {
  return opencl::stream_order(queue_);
}

Status OpenClDevice::synchronize(Stream stream) {
  const DeviceLock lock = this->lock();
  return device_errors_.take(queue_, stream);
}

}  // namespace moracle
