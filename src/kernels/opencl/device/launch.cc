#include "kernels/opencl/device/launch.h"

#include "base/text.h"
#include "kernels/opencl/device/opencl_memory.h"

namespace moracle::opencl {

Status start(const Queue& queue, Stream stream, const KernelName& name, cl_kernel kernel,
             int64_t groups, int64_t threads) {
  constexpr int64_t kMostGroups = int64_t{1} << 22;
  if (name.follows_pointers) MORACLE_CHECK(queue.memory->share_all(kernel));
  const auto local = static_cast<size_t>(threads);
  const size_t global = static_cast<size_t>(std::min(groups, kMostGroups)) * local;
  const cl_int code = queue.cl->clEnqueueNDRangeKernel(queue.of(stream), kernel, 1, nullptr,
                                                       &global, &local, 0, nullptr, nullptr);
  if (code == CL_SUCCESS) return {};
  return Error{ErrorKind::kIo, name.file, str("kernel '", name.kernel, "'"),
               str("to start with ", groups, " work-groups of ", threads), name_of(code)};
}

}  // namespace moracle::opencl
