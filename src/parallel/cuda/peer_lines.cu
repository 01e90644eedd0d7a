#if defined(MORACLE_WITH_NCCL)
#include "parallel/cuda/peer_lines.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "parallel/cuda/peer_sums.cuh"
#include "parallel/cuda/peer_work.cuh"

namespace moracle::cuda {
namespace {

__device__ void send_line(std::byte* to, uint2 values, uint32_t round) {
  store_volatile_16(to, {values.x, round, values.y, round});
}

// Waits for the line of this round. A host that gives up ends the wait; the values are then wrong,
// and the host does not use them.
__device__ uint2 receive_line(const std::byte* from, uint32_t round, const volatile int* stop) {
  constexpr int kBetweenLooks = 4096;
  for (int tries = 1;; ++tries) {
    const uint4 line = load_volatile_16(from);
    if (line.y == round && line.w == round) return {line.x, line.z};
    if (tries % kBetweenLooks == 0 && *stop != 0) return {line.x, line.z};
  }
}

// Values of one rank for all others, and their sum.
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
struct Gather : GatheredParts {
  __device__ uint2 value_for(int, int64_t at) const {
    const PeerPart& part = find(at);
    return *reinterpret_cast<const uint2*>(part.mine + at);
  }
  __device__ void begin(int64_t) {}
  __device__ void take(int rank, int64_t at, uint2 value) const {
    const PeerPart& part = find(at);
    *reinterpret_cast<uint2*>(part.all + rank * part.bytes + at) = value;
  }
  __device__ void end(int64_t) {}
};

template <class Work>
__global__ void __launch_bounds__(PeerLines::kThreads)
    peer_kernel(const __grid_constant__ PeerLines s, const __grid_constant__ Work given) {
  Work work = given;
  constexpr int64_t kBlockBytes = int64_t{PeerLines::kLines} * 8;
  uint32_t round = s.rounds[blockIdx.x];
  // Line `line` of this block in the half of `round`, from rank `from`, in the memory of `at`.
  const auto place = [&](int at, int from, int line) {
    const int64_t part = ((round % 2) * s.ranks + from) * PeerLines::kBlocks + blockIdx.x;
    return s.memory[at] + (part * PeerLines::kLines + line) * 16;
  };
  for (int64_t first = blockIdx.x * kBlockBytes; first < given.bytes;
       first += gridDim.x * kBlockBytes) {
    ++round;
#pragma unroll
    for (int i = 0; i < PeerLines::kLinesOfThread; ++i) {
      const int line = i * PeerLines::kThreads + threadIdx.x;
      if (first + line * 8 >= given.bytes) continue;
      for (int r = 1; r < s.ranks; ++r) {
        const int to = (s.rank + r) % s.ranks;
        send_line(place(to, s.rank, line), given.value_for(to, first + line * 8), round);
      }
    }
#pragma unroll
    for (int i = 0; i < PeerLines::kLinesOfThread; ++i) {
      const int line = i * PeerLines::kThreads + threadIdx.x;
      const int64_t at = first + line * 8;
      if (at >= given.bytes) continue;
      work.begin(at);
      for (int r = 0; r < s.ranks; ++r)
        work.take(r, at,
                  r == s.rank ? given.value_for(r, at)
                              : receive_line(place(s.rank, r, line), round, s.stop));
      work.end(at);
    }
  }
  __syncthreads();  // all threads have read the number
  if (threadIdx.x == 0) s.rounds[blockIdx.x] = round;
}

template <class Work>
Status start(const Queue& queue, const PeerLines& lines, const Work& work, Stream stream) {
  constexpr int64_t kBlockBytes = int64_t{PeerLines::kLines} * 8;
  const int64_t blocks =
      std::min<int64_t>((work.bytes + kBlockBytes - 1) / kBlockBytes, PeerLines::kBlocks);
  return launch(queue, stream, "sum over peers", peer_kernel<Work>, blocks, PeerLines::kThreads, 0,
                lines, work);
}

Status start_sum(const Queue& queue, const PeerLines& lines, const SumWork& work, DType type,
                 Stream stream) {
  if (type == DType::kF32) return start(queue, lines, Sum<float>{work, {}}, stream);
  if (type == DType::kBF16) return start(queue, lines, Sum<__nv_bfloat16>{work, {}}, stream);
  return start(queue, lines, Sum<__half>{work, {}}, stream);
}

}  // namespace

Status peer_sum(const Queue& queue, const PeerLines& lines, const Matrix& x, Stream stream) {
  return start_sum(queue, lines, {SummedBytes::in_place(x)}, x.dtype, stream);
}

Status peer_sum_rows(const Queue& queue, const PeerLines& lines, const Matrix& all,
                     const Matrix& mine, Stream stream) {
  return start_sum(queue, lines, {SummedBytes::of_rows(all, mine)}, mine.dtype, stream);
}

Status peer_gather(const Queue& queue, const PeerLines& lines, std::span<const PeerPart> parts,
                   Stream stream) {
  return start(queue, lines, Gather{GatheredParts::of(parts)}, stream);
}

}  // namespace moracle::cuda
#endif
