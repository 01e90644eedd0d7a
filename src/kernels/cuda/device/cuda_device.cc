#include "kernels/cuda/device/cuda_device.h"

#include <cstring>

#include "base/text.h"
#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/cuda_graph.h"
#include "kernels/cuda/device/cuda_stream_order.h"
#include "kernels/cuda/device/cuda_timeline.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/staging/cuda_host_link.h"
#include "kernels/cuda/staging/cuda_transfers.h"
#include "oracle/machine/cuda_driver.h"

namespace moracle {
namespace {

constexpr int kLeastCapability = 75;

Status check_gpu(int index) {
  auto wrong = [&](std::string need, std::string fact) {
    return Error{ErrorKind::kUnsupported, "", str("device 'cuda:", index, "'"), std::move(need),
                 std::move(fact)};
  };
  int count = 0;
  if (Status counted = cuda::check(cudaGetDeviceCount(&count), "cudaGetDeviceCount"); !counted) {
    int driver = 0;
    static_cast<void>(cudaDriverGetVersion(&driver));  // no driver: succeeds, and gives 0
    return wrong("an NVIDIA GPU and its driver, or device cpu",
                 cuda::no_gpu(driver, CUDART_VERSION, counted.error().fact));
  }
  if (index >= count)
    return wrong("an NVIDIA GPU with this index, or device cpu",
                 str("this machine has ", count, count == 1 ? " GPU" : " GPUs"));
  int major = 0, minor = 0;
  MORACLE_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  MORACLE_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  if (10 * major + minor >= kLeastCapability) return {};
  return wrong("compute capability 7.5 or later", str("this GPU has ", major, ".", minor));
}

}  // namespace

CudaDevice::CudaDevice(int index, const DeviceOptions& options)
    : queue_{.index = index},
      memory_(index, options),
      ops_(std::make_unique<CudaOps>(queue_, device_errors_)),
      host_threads_(options.run_tasks ? ThreadPool(options.threads, options.run_tasks)
                                      : ThreadPool(options.threads)) {}

Result<std::shared_ptr<Device>> CudaDevice::open(int index, const DeviceOptions& options) {
  MORACLE_CHECK(check_gpu(index));
  std::shared_ptr<CudaDevice> device(new CudaDevice(index, options));
  MORACLE_CHECK(device->host_threads_.started());
  MORACLE_CHECK(device->start());
  return std::shared_ptr<Device>(std::move(device));
}

Status CudaDevice::start() {
  MORACLE_TRY(const cuda::CurrentDevice here, cuda::CurrentDevice::enter(queue_.index));
  MORACLE_CUDA(cudaStreamCreateWithFlags(&queue_.own, cudaStreamNonBlocking));
  int major = 0, minor = 0;
  MORACLE_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, queue_.index));
  MORACLE_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, queue_.index));
  queue_.capability = 10 * major + minor;
  MORACLE_TRY(queue_.dependent_launch, cuda::compiled_with_dependent_launch());
  MORACLE_CUDA(
      cudaDeviceGetAttribute(&queue_.num_sms, cudaDevAttrMultiProcessorCount, queue_.index));
  MORACLE_TRY(Buffer cells, memory_.take(cuda::DeviceErrors::kBytes));
  return device_errors_.open(std::move(cells), queue_.own);
}

CudaDevice::~CudaDevice() {
  if (queue_.own == nullptr) return;
  static_cast<void>(cudaStreamSynchronize(queue_.own));
  static_cast<void>(cudaStreamDestroy(queue_.own));
}

std::string CudaDevice::name() const {
  return str("cuda:", queue_.index);
}

Ops& CudaDevice::ops() {
  return *ops_;
}

// Synchronizes: every stream must see the zeros, not only this one.
Result<Buffer> CudaDevice::zeroed(Result<Buffer> buffer) {
  if (!buffer) return buffer;
  MORACLE_TRY(const cuda::CurrentDevice here, cuda::CurrentDevice::enter(queue_.index));
  MORACLE_CUDA(cudaMemsetAsync(buffer->data(), 0, buffer->bytes(), queue_.own));
  MORACLE_CHECK(watches_.wait(queue_.own));
  return buffer;
}

Result<Buffer> CudaDevice::allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  const DeviceLock lock = this->lock();
  return zeroed(memory_.take(bytes));
}

Result<Buffer> CudaDevice::allocate_to_share(size_t bytes) {
  if (bytes == 0) return Buffer();
  const DeviceLock lock = this->lock();
  return zeroed(memory_.take_of_its_own(bytes));
}

Status CudaDevice::upload(void* to, const void* from, size_t bytes, Stream stream) {
  const DeviceLock lock = this->lock();
  MORACLE_TRY(const cuda::CurrentDevice here, cuda::CurrentDevice::enter(queue_.index));
  MORACLE_CHECK(staging_.enqueue(to, from, bytes, queue_.of(stream), watches_));
  return watches_.wait(queue_.of(stream));
}

Status CudaDevice::enqueue_upload(void* to, const void* from, size_t bytes, Stream stream) {
  const DeviceLock lock = this->lock();
  MORACLE_TRY(const cuda::CurrentDevice here, cuda::CurrentDevice::enter(queue_.index));
  return staging_.enqueue(to, from, bytes, queue_.of(stream), watches_);
}

Status CudaDevice::download(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes == 0) return {};
  const DeviceLock lock = this->lock();
  MORACLE_TRY(const cuda::CurrentDevice here, cuda::CurrentDevice::enter(queue_.index));
  MORACLE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, queue_.of(stream)));
  return {};
}

// The thread's stream waits for earlier work on the legacy stream, on which engines load tensors.
Status CudaDevice::read(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return {};
  MORACLE_TRY(const cuda::CurrentDevice here, cuda::CurrentDevice::enter(queue_.index));
  MORACLE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, cudaStreamPerThread));
  MORACLE_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
  return {};
}

Status CudaDevice::copy(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes == 0) return {};
  const DeviceLock lock = this->lock();
  MORACLE_TRY(const cuda::CurrentDevice here, cuda::CurrentDevice::enter(queue_.index));
  MORACLE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, queue_.of(stream)));
  return {};
}

Result<std::unique_ptr<Graph>> CudaDevice::record(const std::function<Status()>& enqueue,
                                                  Stream stream) {
  const DeviceLock lock = this->lock();
  return cuda::record(enqueue, *this, queue_, stream);
}

std::shared_ptr<StreamOrder> CudaDevice::stream_order() {
  return std::make_shared<cuda::CudaStreamOrder>(queue_);
}

Result<std::unique_ptr<HostLink>> CudaDevice::host_link(const HostLinkSize& size) {
  return cuda::open_host_link(*this, size);
}

Result<std::unique_ptr<ExpertTransfers>> CudaDevice::transfers(int64_t from_bytes,
                                                               int64_t to_bytes) {
  return cuda::open_transfers(*this, from_bytes, to_bytes);
}

std::shared_ptr<void> CudaDevice::pin(void* data, size_t bytes) {
  return cuda::pin(queue_.index, data, bytes);
}

Result<std::unique_ptr<Timeline>> CudaDevice::timeline(Stream stream) {
  return cuda::timeline(queue_, stream, watches_);
}

Result<Buffer> CudaDevice::allocate_host(size_t bytes) {
  if (bytes == 0) return Buffer();
  MORACLE_TRY(const cuda::CurrentDevice here, cuda::CurrentDevice::enter(queue_.index));
  void* data = nullptr;
  MORACLE_CUDA(cudaMallocHost(&data, bytes));
  std::memset(data, 0, bytes);
  return Buffer(data, bytes,
                std::shared_ptr<void>(data, [](void* p) { static_cast<void>(cudaFreeHost(p)); }));
}

Status CudaDevice::synchronize(Stream stream) {
  const DeviceLock lock = this->lock();
  MORACLE_TRY(const cuda::CurrentDevice here, cuda::CurrentDevice::enter(queue_.index));
  MORACLE_CHECK(watches_.guard(queue_.of(stream)));
  return device_errors_.take(queue_.of(stream));
}

}  // namespace moracle
