#include "kernels/cuda/dense/few_rows.cuh"

#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle::cuda {
namespace {

template <int kWarps>
__global__ void __launch_bounds__(32 * kWarps) few_rows(const FewRows args, bool aligned) {
  __shared__ FewRowsSums<kWarps> sums;
  const auto await = [] {
    pdl_wait();
    pdl_launch_dependents();
  };
  sum_few_rows<kWarps>(args, sums, await, FewRowsX(args, aligned));
  __syncthreads();
  store_few_rows<kWarps>(args, sums);
}

using Kernel = void (*)(FewRows, bool);
constexpr Kernel kKernels[] = {few_rows<kFewRowsWarps>, few_rows<kManyRowsWarps>};

}  // namespace

Status multiply_few_rows(const Queue& queue, const FewRows& args, Stream stream) {
  if (args.x.rows == 0) return {};
  const bool many = takes_many_warps(args.k);
  return launch_early(
      queue, stream, "few_rows", kKernels[many], (args.n + kFewRowsOutputs - 1) / kFewRowsOutputs,
      32 * (many ? kManyRowsWarps : kFewRowsWarps), 0, args, has_aligned_rows(args.x));
}

Status load_few_rows() {
  for (const Kernel kernel : kKernels) {
    cudaFuncAttributes attributes{};
    MORACLE_CUDA(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
  }
  return {};
}

}  // namespace moracle::cuda
