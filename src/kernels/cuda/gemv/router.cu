// Each CTA computes 16 logits of every token, as gemv_dense_bf16 does. Then one CTA chooses the
// experts, a warp for each token. With a norm, each CTA normalizes all rows in its prologue: that
// takes less time than a kernel before this one.
//
// On Hopper the CTAs form a cluster of up to 8. They send their logits to the first CTA through
// distributed shared memory, and the last CTA stores the residual sums. Otherwise logits go through
// global memory, and the last CTA to arrive does the rest: all others have read the rows.
#include "kernels/cuda/gemv/router.h"

#include "kernels/check_ops.h"
#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/gemv/dense_bf16.cuh"
#include "kernels/cuda/gemv/gemv_plan.h"
#include "kernels/cuda/ops/norm_in_block.cuh"
#include "kernels/cuda/ops/route_rows.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle::cuda {
namespace {

struct RouterArgs {
  DenseBf16 product;
  AddRmsNorm norm;
  RouteArgs route;
  unsigned* arrived;
  bool aligned;  // rows of x
  bool cluster;  // the CTAs form one
};

constexpr int kClusterBlocks = 8;  // larger ones are non-portable, and few GPCs have the SMs free
constexpr int kClusterLogits = kClusterBlocks * kDenseBf16Outputs;
// Logits of all CTAs, in the first one of a cluster.
using ClusterLogits = float[kMostRouterTokens][kClusterLogits];

// The value that a logit of this type has once it is stored.
__device__ float as_stored(DType dtype, float value) {
  if (dtype == DType::kBF16) return bf16_to_float(float_to_bf16(value));
  return dtype == DType::kF16 ? f16_to_float(float_to_f16(value)) : value;
}

// True in the last CTA that calls. All earlier writes of the other CTAs are visible to it.
__device__ bool is_last_block(unsigned* arrived) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(arrived, 1u) + 1 == gridDim.x;
    if (last) *arrived = 0;
    __threadfence();
  }
  __syncthreads();
  return last;
}

// x += y, by the warps from number `busy` on.
template <int kWarps>
__device__ void store_residual_sums(const AddRmsNorm& norm, int busy) {
  const int rows = static_cast<int>(norm.x.rows), count = static_cast<int>(norm.x.cols / 8);
  const int first = static_cast<int>(threadIdx.x) - busy * 32, step = (kWarps - busy) * 32;
  if (first < 0) return;
  for (int i = first; i < rows * count; i += step) {
    const int r = i / count, at = i % count;
    eights(norm.x, r)[at] = added(eights(norm.x, r)[at], eights(norm.y, r)[at]);
  }
}

// A lane holds at most kEach scores of a token.
template <int kWarps, int kEach, bool kNorms>
__global__ void __launch_bounds__(32 * kWarps)
    gemv_router(const __grid_constant__ RouterArgs args) {
  static_assert(kWarps >= kDenseGemvRows, "a warp for each token");
  extern __shared__ uint4 normed_rows[];
  __shared__ DenseBf16Sums<kWarps> sums;
  const DenseBf16& product = args.product;
  const auto rows = static_cast<int>(product.x.rows);
  if (args.cluster) cluster_arrive();
  if constexpr (kNorms) {
    constexpr int kVectors = kWarps == kDenseBf16Warps ? 1 : kMostEights;
    __shared__ NormSquares squares;
    const int stride = normed_stride(product.k);
    auto* const normed = reinterpret_cast<Eight*>(normed_rows);
    const auto await = [&] {
      NormInBlock<32 * kWarps, kVectors> norm(args.norm);
      pdl_wait();
      pdl_launch_dependents();
      norm.run(args.norm, normed, stride, squares, [](int, int, const Eight&) {});
      const int count = static_cast<int>(product.k / 8);
      for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < rows * count;
           i += static_cast<int>(gridDim.x * blockDim.x))
        eights(args.norm.out, i / count)[i % count] = normed[i / count * stride + i % count];
    };
    const int row = threadIdx.x % 32 / 4;
    const auto x = [&](int64_t column) -> uint4 {
      if (row >= rows || column >= product.k) return {};
      return normed[row * stride + column / 8].bits;
    };
    sum_dense_bf16<kWarps>(product, sums, await, x);
  } else {
    const auto await = [] {
      pdl_wait();
      pdl_launch_dependents();
    };
    sum_dense_bf16<kWarps>(product, sums, await, DenseBf16X(product, args.aligned));
  }
  __syncthreads();
  RouteArgs route = args.route;
  bool chooses = true, adds = true;  // this CTA's part of the rest
  if (args.cluster) {
    __shared__ ClusterLogits logits;
    cluster_wait();  // the first CTA's shared memory exists
    put_dense_bf16<kWarps>(product, sums, [&](int row, int64_t output, float sum) {
      store(product.y, row, output, sum);  // for callers, as without a cluster
      const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(&logits[row][output]));
      store_cluster(to, 0, as_stored(product.y.dtype, sum));
    });
    cluster_arrive();
    cluster_wait();
    route.logits = {logits, DType::kF32, rows, product.n, kClusterLogits};
    chooses = cluster_rank() == 0, adds = cluster_rank() + 1 == gridDim.x;
  } else {
    store_dense_bf16<kWarps>(product, sums);
    if (!is_last_block(args.arrived)) return;
  }
  const int warp = threadIdx.x / 32;
  if (chooses && warp < rows) route_in_warp<kEach>(route, warp);
  if constexpr (kNorms) {
    // The warps that choose an expert take no part, unless all do.
    if (adds) store_residual_sums<kWarps>(args.norm, chooses && rows < kWarps ? rows : 0);
  }
}

using Kernel = void (*)(RouterArgs);
// [many warps][many experts][norms]
constexpr Kernel kRouters[2][2][2] = {
    {{gemv_router<kDenseBf16Warps, kNarrowExpertsPerLane, false>,
      gemv_router<kDenseBf16Warps, kNarrowExpertsPerLane, true>},
     {gemv_router<kDenseBf16Warps, kMostExpertsPerLane, false>,
      gemv_router<kDenseBf16Warps, kMostExpertsPerLane, true>}},
    {{gemv_router<kDenseBf16ManyWarps, kNarrowExpertsPerLane, false>,
      gemv_router<kDenseBf16ManyWarps, kNarrowExpertsPerLane, true>},
     {gemv_router<kDenseBf16ManyWarps, kMostExpertsPerLane, false>,
      gemv_router<kDenseBf16ManyWarps, kMostExpertsPerLane, true>}}};

}  // namespace

bool gemv_router_serves(const LinearCall& call) {
  const auto* const to = call.to<LinearCall::Route>();
  const int64_t num_experts = call.out.cols, rows = call.x().rows;
  return to != nullptr && rows <= kMostRouterTokens && is_dense_gemv(rows, num_experts) &&
         num_experts <= kMostRouterOutputs && routes_in_warps(num_experts, to->routing, to->top_k);
}

bool gemv_router_norms(const AddRmsNorm& norm) {
  return norm.x.rows <= kDenseGemvRows && are_eights({&norm.x, &norm.y, &norm.out}, norm.weight) &&
         normed_bytes(norm.x.rows, norm.x.cols) <= kMostNormedBytes;
}

Status route_gemv(const Queue& queue, const DenseBf16& product, const LinearCall::Route& to,
                  const AddRmsNorm* norm, unsigned* arrived, Stream stream) {
  if (product.x.rows == 0) return {};
  MORACLE_CHECK(check_routing(to.routing, product.n, to.correction_bias != nullptr, to.top_k));
  const int64_t blocks = (product.n + kDenseBf16Outputs - 1) / kDenseBf16Outputs;
#if defined(MORACLE_WITH_SM90A)  // later GPUs run code for compute capability 8.0
  const bool cluster = queue.capability == 90 && blocks <= kClusterBlocks;
#else
  const bool cluster = false;
#endif
  const RouterArgs args{
      product,
      norm != nullptr ? *norm : AddRmsNorm{},
      {product.y, to.routing, to.correction_bias, to.top_k, to.topk_ids, to.topk_weights},
      arrived,
      has_aligned_rows(product.x),
      cluster};
  const bool many = takes_many_warps(product.k), wide = product.n > 32 * kNarrowExpertsPerLane;
  return launch_clusters(
      queue, stream, "gemv_router", kRouters[many][wide][norm != nullptr], blocks,
      cluster ? static_cast<int>(blocks) : 1, 32 * (many ? kDenseBf16ManyWarps : kDenseBf16Warps),
      norm != nullptr ? static_cast<size_t>(normed_bytes(product.x.rows, product.k)) : 0, args);
}

Status load_gemv_router() {
  for (const auto& of_warps : kRouters) {
    for (const auto& of_experts : of_warps) {
      for (const Kernel kernel : of_experts) {
        cudaFuncAttributes attributes{};
        MORACLE_CUDA(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
      }
    }
  }
  return {};
}

}  // namespace moracle::cuda
