#if defined(MORACLE_WITH_NCCL)
#include "parallel/cuda/peer_low_latency.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "parallel/cuda/peer_sums.cuh"
#include "parallel/cuda/peer_work.cuh"

namespace moracle::cuda {
namespace {

__device__ void send_packet(std::byte* to, uint2 values, uint32_t round) {
  store_volatile_16(to, {values.x, round, values.y, round});
}

// Polls the packet of this round. If the host sets *stop, returns other values, which the host
// discards.
__device__ uint2 receive_packet(const std::byte* from, uint32_t round, const volatile int* stop) {
  constexpr int kBetweenLooks = 4096;
  for (int tries = 1;; ++tries) {
    const uint4 packet = load_volatile_16(from);
    if (packet.y == round && packet.w == round) return {packet.x, packet.z};
    if (tries % kBetweenLooks == 0 && *stop != 0) return {packet.x, packet.z};
  }
}

// Sends the values of this rank and sums those of all ranks.
struct SumWork : SummedBytes {
  __device__ uint2 value_for(int rank, int64_t at) const {
    return *reinterpret_cast<const uint2*>(from + rank * of_rank + at);
  }
};
template <class T>
struct Sum : SumWork {
  Summed<T> sum;
  __device__ void begin(int64_t) { sum = Summed<T>(); }
  __device__ void take(int, int64_t, uint2 value) { sum.add(value); }
  __device__ void end(int64_t at) { *reinterpret_cast<uint2*>(to + at) = sum.rounded(); }
};
struct Gather : PeerGatherList {
  __device__ uint2 value_for(int, int64_t at) const {
    const PeerGathered& one = find(at);
    return *reinterpret_cast<const uint2*>(one.mine + at);
  }
  __device__ void begin(int64_t) {}
  __device__ void take(int rank, int64_t at, uint2 value) const {
    const PeerGathered& one = find(at);
    *reinterpret_cast<uint2*>(one.all + rank * one.bytes + at) = value;
  }
  __device__ void end(int64_t) {}
};

template <class Work>
__global__ void __launch_bounds__(PeerLowLatency::kThreads)
    peer_kernel(const __grid_constant__ PeerLowLatency s, const __grid_constant__ Work given) {
  Work work = given;
  constexpr int64_t kBlockBytes = int64_t{PeerLowLatency::kPackets} * 8;
  uint32_t round = s.rounds[blockIdx.x];
  // Packet `packet` of this thread block in round `round`, from rank `from`, in the memory of `at`.
  const auto slot = [&](int at, int from, int packet) {
    const int64_t slot = ((round % 2) * s.ranks + from) * PeerLowLatency::kBlocks + blockIdx.x;
    return s.memory[at] + (slot * PeerLowLatency::kPackets + packet) * 16;
  };
  for (int64_t first = blockIdx.x * kBlockBytes; first < given.bytes;
       first += gridDim.x * kBlockBytes) {
    ++round;
#pragma unroll
    for (int i = 0; i < PeerLowLatency::kPacketsOfThread; ++i) {
      const int packet = i * PeerLowLatency::kThreads + threadIdx.x;
      if (first + packet * 8 >= given.bytes) continue;
      for (int r = 1; r < s.ranks; ++r) {
        const int to = (s.rank + r) % s.ranks;
        send_packet(slot(to, s.rank, packet), given.value_for(to, first + packet * 8), round);
      }
    }
#pragma unroll
    for (int i = 0; i < PeerLowLatency::kPacketsOfThread; ++i) {
      const int packet = i * PeerLowLatency::kThreads + threadIdx.x;
      const int64_t at = first + packet * 8;
      if (at >= given.bytes) continue;
      work.begin(at);
      for (int r = 0; r < s.ranks; ++r)
        work.take(r, at,
                  r == s.rank ? given.value_for(r, at)
                              : receive_packet(slot(s.rank, r, packet), round, s.stop));
      work.end(at);
    }
  }
  __syncthreads();  // all threads have read s.rounds
  if (threadIdx.x == 0) s.rounds[blockIdx.x] = round;
}

template <class Work>
Status start(const Queue& queue, const PeerLowLatency& low_latency, const Work& work,
             Stream stream) {
  constexpr int64_t kBlockBytes = int64_t{PeerLowLatency::kPackets} * 8;
  const int64_t blocks =
      std::min<int64_t>((work.bytes + kBlockBytes - 1) / kBlockBytes, PeerLowLatency::kBlocks);
  return launch(queue, stream, "low-latency exchange over peers", peer_kernel<Work>, blocks,
                PeerLowLatency::kThreads, 0, low_latency, work);
}

Status start_sum(const Queue& queue, const PeerLowLatency& low_latency, const SumWork& work,
                 DType type, Stream stream) {
  if (type == DType::kF32) return start(queue, low_latency, Sum<float>{work, {}}, stream);
  if (type == DType::kBF16) return start(queue, low_latency, Sum<__nv_bfloat16>{work, {}}, stream);
  return start(queue, low_latency, Sum<__half>{work, {}}, stream);
}

}  // namespace

Status peer_sum(const Queue& queue, const PeerLowLatency& low_latency, const Matrix& x,
                Stream stream) {
  return start_sum(queue, low_latency, {SummedBytes::in_place(x)}, x.dtype, stream);
}

Status peer_sum_rows(const Queue& queue, const PeerLowLatency& low_latency, const Matrix& all,
                     const Matrix& mine, Stream stream) {
  return start_sum(queue, low_latency, {SummedBytes::of_rows(all, mine)}, mine.dtype, stream);
}

Status peer_gather(const Queue& queue, const PeerLowLatency& low_latency,
                   std::span<const PeerGathered> gathered, Stream stream) {
  return start(queue, low_latency, Gather{PeerGatherList::of(gathered)}, stream);
}

}  // namespace moracle::cuda
#endif
