#include "kernels/cuda/gemv/dense_bf16.cuh"

#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle::cuda {
namespace {

template <int kWarps>
__global__ void __launch_bounds__(32 * kWarps) gemv_dense_bf16(const DenseBf16 args, bool aligned) {
  __shared__ DenseBf16Sums<kWarps> sums;
  const auto await = [] {
    pdl_wait();
    pdl_launch_dependents();
  };
  sum_dense_bf16<kWarps>(args, sums, await, DenseBf16X(args, aligned));
  __syncthreads();
  store_dense_bf16<kWarps>(args, sums);
}

using Kernel = void (*)(DenseBf16, bool);
constexpr Kernel kKernels[] = {gemv_dense_bf16<kDenseBf16Warps>,
                               gemv_dense_bf16<kDenseBf16ManyWarps>};

}  // namespace

Status multiply_dense_bf16(const Queue& queue, const DenseBf16& args, Stream stream) {
  if (args.x.rows == 0) return {};
  const bool many = takes_many_warps(args.k);
  return launch_early(queue, stream, "gemv_dense_bf16", kKernels[many],
                      (args.n + kDenseBf16Outputs - 1) / kDenseBf16Outputs,
                      32 * (many ? kDenseBf16ManyWarps : kDenseBf16Warps), 0, args,
                      has_aligned_rows(args.x));
}

Status load_dense_bf16() {
  for (const Kernel kernel : kKernels) {
    cudaFuncAttributes attributes{};
    MORACLE_CUDA(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
  }
  return {};
}

}  // namespace moracle::cuda
