// Attention for sequences with many tokens in a step, on Hopper's tensor cores (Shah et al.,
// "FlashAttention-3", 2024). A block takes 128 queries of one KV head: all heads that share its
// keys, token by token. One warpgroup copies queries, keys and values ahead, two multiply 64
// queries each and take turns. Blocks are persistent. 2 x 2,048 tokens, 32 heads of 128: 128 us on
// an H100, 540 TFLOP/s (bench/lab/h200_attention.md).
#include "kernels/cuda/attention/prefill_sm90_producer.cuh"
#include "kernels/cuda/attention/prefill_sm90_consumer.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace moracle::cuda {
namespace {

template <int kHead, int kValue, DType kCache>
__global__ void __launch_bounds__(kComputers + kLoaders, 1)
    attend_wgmma(const __grid_constant__ AttendArgs a, int64_t tiles) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kLoaderRegisters = 40, kComputerRegisters = 232;
  extern __shared__ __align__(1024) uint8_t memory[];
  BlockRing<kHead, kValue, kCache> ring{shared_address(memory)};
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  pdl_wait();
  pdl_launch_dependents();
  // Uniform for the compiler: it then knows that all threads of a warp take the same way.
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == kComputers / 128) {
    setmaxnreg_dec<kLoaderRegisters>();
    if constexpr (kCache == DType::kF8E4M3) {
      widen_pages(a, tiles, ring);
    } else if constexpr (kCache == DType::kF16) {
      round_pages(a, tiles, ring);
    } else {
      load_pages(a, tiles, ring);
    }
  } else {
    setmaxnreg_inc<kComputerRegisters>();
    const Turn turn{group};
    if (group == 1) turn.pass();
    while (QuerySums<kHead, kValue, kCache>::await_tile(ring)) {
      QuerySums<kHead, kValue, kCache> sums(a, ring);
      sums.run(ring, turn);
      sums.store();
    }
  }
#endif
}

}  // namespace

Status attend_many_on_wgmma(const AttendArgs& args, const Queue& queue, Stream stream) {
  return visit_heads(args.shape, [&]<int kHead, int kValue, DType kCache>() -> Status {
    const auto kernel = attend_wgmma<kHead, kValue, kCache>;
    constexpr size_t kShared = BlockRing<kHead, kValue, kCache>::kBytes;
    {
      MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
      MORACLE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
    }
    const int64_t group = args.shape.num_heads / args.shape.num_kv_heads;
    const int64_t tiles = (args.batch.most_tokens * group + kQueries - 1) / kQueries;
    const int64_t all = tiles * args.shape.num_kv_heads * args.batch.num_sequences;
    return launch_early(queue, stream, "attend_wgmma", kernel,
                        std::min<int64_t>(all, queue.multiprocessors), kComputers + kLoaders,
                        kShared, args, tiles);
  });
}

}  // namespace moracle::cuda
