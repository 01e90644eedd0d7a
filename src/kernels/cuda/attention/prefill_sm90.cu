// Prefill attention with wgmma, warp-specialized (Shah et al., "FlashAttention-3", 2024). A CTA
// takes 128 queries of one KV head: all heads that share its keys, token by token. A producer
// warpgroup fills the ring; two consumer warpgroups multiply 64 queries each in a ping-pong
// schedule. CTAs are persistent. 2 x 2,048 tokens, 32 heads of 128: 128 us on an H100, 540 TFLOP/s
// (bench/lab/h200_attention.md).
#include "kernels/cuda/attention/prefill_sm90_consumer.cuh"
#include "kernels/cuda/attention/prefill_sm90_producer.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle::cuda {
namespace {

template <int kHead, int kValue, DType kCache>
__global__ void __launch_bounds__(kConsumers + kProducers, 1)
    attend_prefill_sm90(const __grid_constant__ AttendArgs a, int64_t tiles) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  extern __shared__ __align__(1024) uint8_t memory[];
  PageRing<kHead, kValue, kCache> ring{shared_address(memory)};
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  pdl_wait();
  pdl_launch_dependents();
  // A shuffle makes it uniform for the compiler: all threads of a warp take the same branch.
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == kConsumers / 128) {
    setmaxnreg_dec<kProducerRegisters>();
    Producer<kHead, kValue, kCache>(a, ring).run(tiles);
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    const PingPong order{group};
    if (group == 1) order.pass();
    while (Consumer<kHead, kValue, kCache>::await_tile(ring)) {
      Consumer<kHead, kValue, kCache> own(a, ring);
      own.run(ring, order);
      own.store();
    }
  }
#endif
}

}  // namespace

Status launch_prefill_sm90(const AttendArgs& args, const Queue& queue, Stream stream) {
  return visit_heads(args.shape, [&]<int kHead, int kValue, DType kCache>() -> Status {
    const auto kernel = attend_prefill_sm90<kHead, kValue, kCache>;
    constexpr size_t kShared = PageRing<kHead, kValue, kCache>::kBytes;
    MORACLE_CHECK(allow_shared_memory(queue, kernel, kShared));
    const int64_t tiles = most_tiles<kQueries>(args);
    const int64_t all = tiles * args.shape.num_kv_heads * args.batch.num_sequences;
    return launch_early(queue, stream, "attend_prefill_sm90", kernel,
                        std::min<int64_t>(all, queue.num_sms), kConsumers + kProducers, kShared,
                        args, tiles);
  });
}

}  // namespace moracle::cuda
