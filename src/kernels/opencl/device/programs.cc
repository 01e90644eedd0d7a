#include "kernels/opencl/device/programs.h"

#include "base/text.h"
#include "kernels/opencl/device/binary_cache.h"
#include "kernels/opencl/device/sources.h"

namespace moracle::opencl {
namespace {

// -cl-fp32-correctly-rounded-divide-sqrt: codes and scales are quotients that every device must
// round alike.
constexpr const char* kRounding = " -cl-fp32-correctly-rounded-divide-sqrt";

std::string base_options(const Queue& queue) {
  std::string options = queue.language_3 ? "-cl-std=CL3.0" : "-cl-std=CL1.2";
  if (queue.divides_exactly) options += kRounding;
  return options;
}

}  // namespace

Programs::~Programs() {
  for (auto& [key, kernel] : twins_) queue_.cl->clReleaseKernel(kernel);
  for (auto& [key, kernel] : kernels_) queue_.cl->clReleaseKernel(kernel);
  for (auto& [key, program] : programs_) queue_.cl->clReleaseProgram(program);
}

Result<cl_kernel> Programs::find(const KernelName& name) {
  const std::lock_guard lock(mutex_);
  if (const auto known = found_.find(&name); known != found_.end()) return known->second;
  MORACLE_TRY(const cl_kernel kernel, make_locked(name));
  found_.emplace(&name, kernel);
  return kernel;
}

Result<cl_kernel> Programs::make(const KernelName& name) {
  const std::lock_guard lock(mutex_);
  return make_locked(name);
}

Result<cl_kernel> Programs::make_locked(const KernelName& name) {
  const std::string key = str(name.file, '\n', name.options, '\n', name.kernel);
  auto at = kernels_.find(key);
  if (at == kernels_.end()) {
    MORACLE_TRY(const cl_program whole, program(name.file, name.options));
    cl_int code = CL_SUCCESS;
    const cl_kernel kernel = queue_.cl->clCreateKernel(whole, name.kernel, &code);
    if (code != CL_SUCCESS) {
      return Error{ErrorKind::kIo, name.file, str("kernel '", name.kernel, "'"), "to be created",
                   name_of(code)};
    }
    at = kernels_.emplace(key, kernel).first;
    origins_.emplace(kernel, Origin{whole, name.kernel});
  }
  return at->second;
}

Result<cl_kernel> Programs::twin(cl_kernel kernel, uint64_t nulls) {
  if (nulls == 0) return kernel;
  const std::lock_guard lock(mutex_);
  const auto known = twins_.find({kernel, nulls});
  if (known != twins_.end()) return known->second;
  const Origin& origin = origins_.at(kernel);
  cl_int code = CL_SUCCESS;
  const cl_kernel fresh = queue_.cl->clCreateKernel(origin.program, origin.name.c_str(), &code);
  MORACLE_CHECK(check(code, "clCreateKernel"));
  twins_.emplace(std::pair(kernel, nulls), fresh);
  return fresh;
}

Result<cl_program> Programs::program(const std::string& file, const std::string& options) {
  const std::string key = str(file, '\n', options);
  if (const auto known = programs_.find(key); known != programs_.end()) return known->second;
  const std::string text = with_includes(file);
  if (text.empty()) {
    return Error{ErrorKind::kInvalidArgument, file, "", "a kernel file of this build",
                 "there is none"};
  }
  const std::string all = str(base_options(queue_), options.empty() ? "" : " ", options);
  const BinaryCache cache(queue_, cache_, text, all);
  cl_program program = cache.load();
  if (program != nullptr) {
    ++loaded_;
  } else {
    if (compiling_) compiling_(file);
    MORACLE_TRY(program, build(file, text, all));
    ++compiled_;
    cache.keep(program);
  }
  programs_.emplace(key, program);
  return program;
}

Result<cl_program> Programs::build(const std::string& file, const std::string& text,
                                   const std::string& options) {
  const Api& cl = *queue_.cl;
  const char* source = text.c_str();
  const size_t length = text.size();
  cl_int code = CL_SUCCESS;
  const cl_program program =
      cl.clCreateProgramWithSource(queue_.context, 1, &source, &length, &code);
  MORACLE_CHECK(check(code, "clCreateProgramWithSource"));
  code = cl.clBuildProgram(program, 1, &queue_.device, options.c_str(), nullptr, nullptr);
  if (code == CL_SUCCESS) return program;
  size_t bytes = 0;
  std::string log;
  if (cl.clGetProgramBuildInfo(program, queue_.device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes) ==
      CL_SUCCESS) {
    log.resize(bytes);
    cl.clGetProgramBuildInfo(program, queue_.device, CL_PROGRAM_BUILD_LOG, bytes, log.data(),
                             nullptr);
    while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
  }
  cl.clReleaseProgram(program);
  return Error{ErrorKind::kIo, file, str("opencl:", queue_.index, ", options '", options, "'"),
               "the device's compiler to accept the kernels",
               str(name_of(code), log.empty() ? "" : ": ", log)};
}

}  // namespace moracle::opencl
