#if defined(MORACLE_WITH_NCCL)
#include "parallel/cuda/peer_blocks.h"

#include "kernels/cuda/device/launch.cuh"
#include "parallel/cuda/peer_sums.cuh"

namespace moracle::cuda {
namespace {

__device__ void send_signal(std::byte* to, uint32_t round) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(round) : "memory");
}

// A host that gives up ends the wait; the values are then wrong, and the host does not use them.
__device__ void wait_for(const std::byte* from, uint32_t round, const volatile int* stop) {
  constexpr int kBetweenLooks = 4096;
  for (int tries = 1;; ++tries) {
    uint32_t there;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(there) : "l"(from) : "memory");
    if (there == round || (tries % kBetweenLooks == 0 && *stop != 0)) return;
  }
}

struct BlockSum {
  const std::byte* from;
  int64_t of_rank;  // bytes from the values for a rank to those for the next one
  std::byte* to;
  int64_t bytes;
};
template <class T>
struct SumBlocks : BlockSum {
  __device__ uint4 value_for(int rank, int64_t at) const {
    return *reinterpret_cast<const uint4*>(from + rank * of_rank + at);
  }
  /// `value_of(rank)`: the values at `at`.
  template <class Values>
  __device__ void finish(int64_t at, int ranks, const Values& value_of) const {
    Summed<T> low, high;
    for (int r = 0; r < ranks; ++r) {
      const uint4 value = value_of(r);
      low.add({value.x, value.y}), high.add({value.z, value.w});
    }
    const uint2 a = low.rounded(), b = high.rounded();
    *reinterpret_cast<uint4*>(to + at) = {a.x, a.y, b.x, b.y};
  }
};
struct GatherBlocks {
  PeerPart parts[kMostGathered];
  int64_t bytes;  // of all parts together

  // The part that holds byte `at`, which becomes the place in it.
  __device__ const PeerPart& find(int64_t& at) const {
    int i = 0;
    for (; i < kMostGathered - 1 && at >= parts[i].bytes; ++i) at -= parts[i].bytes;
    return parts[i];
  }
  __device__ uint4 value_for(int, int64_t at) const {
    const PeerPart& part = find(at);
    return *reinterpret_cast<const uint4*>(part.mine + at);
  }
  template <class Values>
  __device__ void finish(int64_t at, int ranks, const Values& value_of) const {
    int64_t in_part = at;
    const PeerPart& part = find(in_part);
    for (int r = 0; r < ranks; ++r)
      *reinterpret_cast<uint4*>(part.all + r * part.bytes + in_part) = value_of(r);
  }
};

template <class Work>
__global__ void __launch_bounds__(PeerBlocks::kThreads)
    peer_blocks_kernel(const __grid_constant__ PeerBlocks s, const __grid_constant__ Work work) {
  constexpr int kEach = PeerBlocks::kEach;
  constexpr int64_t kBytes = PeerBlocks::kBytes;
  const uint32_t before = s.rounds[blockIdx.x];
  const int64_t step = gridDim.x * kBytes;
  const int other = static_cast<int>(threadIdx.x);
  const bool is_other = other < s.ranks && other != s.rank;
  const int64_t all_places = int64_t{PeerBlocks::kPlaces} * s.ranks * PeerBlocks::kBlocks;
  // The number of a block's place for a round, from rank `from`.
  const auto place = [&](uint32_t round, int from) {
    return ((round % PeerBlocks::kPlaces) * s.ranks + from) * int64_t{PeerBlocks::kBlocks} +
           blockIdx.x;
  };
  const auto signal = [&](int at, int64_t number) {
    return s.memory[at] + all_places * kBytes + number * int64_t{sizeof(uint64_t)};
  };
  const auto send = [&](int64_t first, uint32_t round) {
    for (int r = 1; r < s.ranks; ++r) {
      const int to = (s.rank + r) % s.ranks;
      std::byte* const data = s.memory[to] + place(round, s.rank) * kBytes;
      uint4 values[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int64_t at = (i * PeerBlocks::kThreads + threadIdx.x) * int64_t{16};
        if (first + at < work.bytes) values[i] = work.value_for(to, first + at);
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int64_t at = (i * PeerBlocks::kThreads + threadIdx.x) * int64_t{16};
        if (first + at < work.bytes) *reinterpret_cast<uint4*>(data + at) = values[i];
      }
    }
    __syncthreads();
    if (is_other) send_signal(signal(other, place(round, s.rank)), round);
  };
  const auto receive = [&](int64_t first, uint32_t round) {
    if (is_other) wait_for(signal(s.rank, place(round, other)), round, s.stop);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t in_block = (i * PeerBlocks::kThreads + threadIdx.x) * int64_t{16};
      const int64_t at = first + in_block;
      if (at >= work.bytes) continue;
      // Another GPU wrote the values: read past L1.
      work.finish(at, s.ranks, [&](int r) {
        return r == s.rank ? work.value_for(r, at)
                           : __ldcg(reinterpret_cast<const uint4*>(
                                 s.memory[s.rank] + place(round, r) * kBytes + in_block));
      });
    }
  };
  // Send a round ahead, so that its values travel while those of the one before are read.
  uint32_t round = before;
  for (int64_t first = blockIdx.x * kBytes; first < work.bytes + step; first += step) {
    const bool sends = first < work.bytes, receives = round != before;
    if (sends) send(first, round + 1);
    if (receives) receive(first - step, round);
    if (!sends) break;
    ++round;
  }
  if (threadIdx.x == 0) s.rounds[blockIdx.x] = round;
}

template <class Work>
Status start(const Queue& queue, const PeerBlocks& blocks, const Work& work, Stream stream) {
  const int64_t count = std::min<int64_t>(
      (work.bytes + PeerBlocks::kBytes - 1) / PeerBlocks::kBytes, PeerBlocks::kBlocks);
  return launch(queue, stream, "blocks over peers", peer_blocks_kernel<Work>, count,
                PeerBlocks::kThreads, 0, blocks, work);
}

}  // namespace

Status peer_sum_rows(const Queue& queue, const PeerBlocks& blocks, const Matrix& all,
                     const Matrix& mine, Stream stream) {
  const int64_t bytes = mine.rows * mine.cols * bits(mine.dtype) / 8;
  const BlockSum work{static_cast<const std::byte*>(all.data), bytes,
                      static_cast<std::byte*>(mine.data), bytes};
  if (mine.dtype == DType::kF32) return start(queue, blocks, SumBlocks<float>{work}, stream);
  if (mine.dtype == DType::kBF16)
    return start(queue, blocks, SumBlocks<__nv_bfloat16>{work}, stream);
  return start(queue, blocks, SumBlocks<__half>{work}, stream);
}

Status peer_gather(const Queue& queue, const PeerBlocks& blocks, std::span<const PeerPart> parts,
                   Stream stream) {
  GatherBlocks gather{};
  for (size_t i = 0; i < parts.size(); ++i) {
    gather.parts[i] = parts[i];
    gather.bytes += parts[i].bytes;
  }
  return start(queue, blocks, gather, stream);
}

}  // namespace moracle::cuda
#endif
