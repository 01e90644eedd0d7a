#if defined(MORACLE_WITH_NCCL)
#include "parallel/cuda/peer_chunks.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "parallel/cuda/peer_sums.cuh"
#include "parallel/cuda/peer_work.cuh"

namespace moracle::cuda {
namespace {

// Threads of a block that copy values. One more warp sends signals.
constexpr int kCopyThreads = 256, kAddThreads = 512;
// Vectors of 16 bytes of a thread in a chunk.
template <int kThreads>
inline constexpr int kVectorsOf = static_cast<int>(PeerChunks::kBytes) / 16 / kThreads;

// Polls the signal of the round. If the host sets *stop, returns early; the host discards the sums.
__device__ void wait_for(const std::byte* from, uint32_t round, const volatile int* stop) {
  constexpr int kBetweenLooks = 4096;
  for (int tries = 1;; ++tries) {
    if (load_acquire_system(from) == round || (tries % kBetweenLooks == 0 && *stop != 0)) return;
  }
}

// Named barriers, one per ring slot. Four are enough: a warp that writes round n + 4 has read round
// n + 2, which another rank wrote after this block's signal of round n.
__device__ int barrier_of(uint32_t round) {
  return 1 + static_cast<int>(round % PeerChunks::kSlots);
}
__device__ uint4 load_words(const std::byte* from) {
  return *reinterpret_cast<const uint4*>(from);
}
__device__ void store_words(std::byte* to, uint4 words) {
  *reinterpret_cast<uint4*>(to) = words;
}

// Sends the values of this rank and sums those of all ranks.
struct SumWork : SummedBytes {
  static constexpr int kThreads = kCopyThreads;
  __device__ uint4 value_for(int rank, int64_t at) const {
    return load_words(from + rank * of_rank + at);
  }
};
// Address computation dominates, so use more threads than the copy needs.
struct AddWork : RowsOfTokens {
  static constexpr int kThreads = kAddThreads;
};
template <class T, class Work>
struct Sum : Work {
  static constexpr int kEach = kVectorsOf<Work::kThreads>;
  Summed<T> low[kEach], high[kEach];
  __device__ void begin(int i) { low[i] = high[i] = {}; }
  __device__ void take(int i, int, int64_t, uint4 v) {
    low[i].add({v.x, v.y}), high[i].add({v.z, v.w});
  }
  __device__ void end(int i, int64_t at) const {
    const uint2 a = low[i].rounded(), b = high[i].rounded();
    store_words(this->to + at, {a.x, a.y, b.x, b.y});
  }
};
struct Gather : PeerGatherList {
  static constexpr int kThreads = kCopyThreads;
  __device__ uint4 value_for(int, int64_t at) const {
    const PeerGathered& one = find(at);
    return load_words(one.mine + at);
  }
  __device__ void begin(int) const {}
  __device__ void take(int, int rank, int64_t at, uint4 value) const {
    const PeerGathered& one = find(at);
    store_words(one.all + rank * one.bytes + at, value);
  }
  __device__ void end(int, int64_t) const {}
};

template <class Work>
__global__ void __launch_bounds__(Work::kThreads + 32)
    peer_chunks_kernel(const __grid_constant__ PeerChunks s, const __grid_constant__ Work given) {
  pdl_wait();
  pdl_launch_dependents();
  Work work = given;
  constexpr int kThreads = Work::kThreads, kEach = kVectorsOf<kThreads>;
  constexpr int64_t kBytes = PeerChunks::kBytes;
  constexpr int64_t kBlocks = PeerChunks::kBlocks;
  const int64_t begin = blockIdx.x * kBytes, step = gridDim.x * kBytes;
  const int64_t bytes = given.bytes;
  const auto count = static_cast<uint32_t>((bytes - begin + step - 1) / step);  // of rounds
  const uint32_t before = s.rounds[blockIdx.x];
  const int64_t all_slots = int64_t{PeerChunks::kSlots} * s.ranks * kBlocks;
  // The ring slot of this thread block for a round, from rank `from`.
  const auto slot = [&](uint32_t round, int from) {
    return ((round % PeerChunks::kSlots) * s.ranks + from) * kBlocks + blockIdx.x;
  };
  const auto signal = [&](int at, int64_t number) {
    return s.memory[at] + all_slots * kBytes + number * int64_t{sizeof(uint64_t)};
  };
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool is_other = lane < s.ranks && lane != s.rank;

  // Signal warp: the release store waits until the values are in the other GPU's memory, while the
  // copy warps continue.
  if (threadIdx.x / 32 == kThreads / 32) {
    for (uint32_t round = before + 1; round - before <= count; ++round) {
      named_barrier_sync<kThreads + 32>(barrier_of(round));
      if (is_other) store_release_system(signal(lane, slot(round, s.rank)), round);
    }
    if (lane == 0) s.rounds[blockIdx.x] = before + count;  // all warps have read it
    return;
  }
  const auto in_chunk = [](int j) { return (j * kThreads + threadIdx.x) * int64_t{16}; };
  // Write round i before reading round i - 1, to overlap the two.
  int64_t first = begin;
  for (uint32_t i = 1; i <= count + 1; ++i, first += step) {
    const uint32_t round = before + i;
    if (i <= count) {
      for (int r = 1; r < s.ranks; ++r) {
        const int to = (s.rank + r) % s.ranks;
        std::byte* const data = s.memory[to] + slot(round, s.rank) * kBytes;
        uint4 values[kEach];
#pragma unroll
        for (int j = 0; j < kEach; ++j)
          if (first + in_chunk(j) < bytes) values[j] = given.value_for(to, first + in_chunk(j));
#pragma unroll
        for (int j = 0; j < kEach; ++j)
          if (first + in_chunk(j) < bytes) store_words(data + in_chunk(j), values[j]);
      }
      named_barrier_arrive<kThreads + 32>(barrier_of(round));
    }
    if (i == 1) continue;
    if (is_other) wait_for(signal(s.rank, slot(round - 1, lane)), round - 1, s.stop);
    __syncwarp();
    const int64_t sent = first - step;
#pragma unroll
    for (int j = 0; j < kEach; ++j) work.begin(j);
    for (int r = 0; r < s.ranks; ++r) {
      const std::byte* const data = s.memory[s.rank] + slot(round - 1, r) * kBytes;
      uint4 values[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        if (sent + in_chunk(j) >= bytes) continue;
        // Another GPU wrote the values: bypass L1.
        values[j] = r == s.rank ? given.value_for(r, sent + in_chunk(j))
                                : __ldcg(reinterpret_cast<const uint4*>(data + in_chunk(j)));
      }
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (sent + in_chunk(j) < bytes) work.take(j, r, sent + in_chunk(j), values[j]);
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (sent + in_chunk(j) < bytes) work.end(j, sent + in_chunk(j));
  }
}

template <class Work>
Status start(const Queue& queue, const PeerChunks& chunks, const Work& work, Stream stream) {
  const int64_t count = std::min<int64_t>(
      (work.bytes + PeerChunks::kBytes - 1) / PeerChunks::kBytes, PeerChunks::kBlocks);
  return launch_early(queue, stream, "chunks over peers", peer_chunks_kernel<Work>, count,
                      Work::kThreads + 32, 0, chunks, work);
}

Status start_sum(const Queue& queue, const PeerChunks& chunks, const SumWork& work, DType type,
                 Stream stream) {
  if (type == DType::kF32) return start(queue, chunks, Sum<float, SumWork>{work, {}, {}}, stream);
  if (type == DType::kBF16)
    return start(queue, chunks, Sum<__nv_bfloat16, SumWork>{work, {}, {}}, stream);
  return start(queue, chunks, Sum<__half, SumWork>{work, {}, {}}, stream);
}

constexpr int kOrderThreads = 256;

// Sorts the rows of each token, one thread per slot; slots without a row come last.
__global__ void __launch_bounds__(kOrderThreads)
    order_rows(const int32_t* slot_row, const float* weights, int slots, int top_k,
               Exchange::RowOrder order) {
  pdl_wait();
  pdl_launch_dependents();
  const int slot = static_cast<int>(blockIdx.x * kOrderThreads + threadIdx.x);
  if (slot >= slots) return;
  const int first = slot / top_k * top_k;
  const int32_t own = slot_row[slot];
  int before = 0, rows = 0;
  for (int other = first; other < first + top_k; ++other) {
    const int32_t row = slot_row[other];
    rows += row >= 0;
    before += own >= 0 ? row >= 0 && row < own : row < 0 && other < slot;
  }
  const int position = first + before + (own >= 0 ? 0 : rows);
  order.rows[position] = own;
  order.weights[position] = weights != nullptr ? weights[slot] : 1.0f;
}

}  // namespace

Status peer_sum(const Queue& queue, const PeerChunks& chunks, const Matrix& x, Stream stream) {
  return start_sum(queue, chunks, {SummedBytes::in_place(x)}, x.dtype, stream);
}

Status peer_sum_in_ranges(const Queue& queue, const PeerChunks& chunks, const Matrix& x,
                          Stream stream) {
  const SummedBytes all = SummedBytes::in_place(x), mine = all.range(chunks.rank, chunks.ranks);
  MORACLE_CHECK(start_sum(queue, chunks, {mine}, x.dtype, stream));
  const PeerGathered gathered{mine.to, mine.bytes, all.to};
  return peer_gather(queue, chunks, {&gathered, 1}, stream);
}

Status peer_sum_rows(const Queue& queue, const PeerChunks& chunks, const Matrix& all,
                     const Matrix& mine, Stream stream) {
  return start_sum(queue, chunks, {SummedBytes::of_rows(all, mine)}, mine.dtype, stream);
}

Status peer_gather(const Queue& queue, const PeerChunks& chunks,
                   std::span<const PeerGathered> gathered, Stream stream) {
  return start(queue, chunks, Gather{PeerGatherList::of(gathered)}, stream);
}

Status peer_combine_scatter(const Queue& queue, const PeerChunks& chunks, const ExpertRows& rows,
                            const Exchange::RowOrder& order, const Matrix& mine, Stream stream) {
  const auto slots = static_cast<int>(rows.num_tokens * rows.top_k);
  MORACLE_CHECK(launch_early(
      queue, stream, "order of rows", order_rows, (slots + kOrderThreads - 1) / kOrderThreads,
      kOrderThreads, 0, rows.slot_row, rows.weights, slots, static_cast<int>(rows.top_k), order));
  return start(queue, chunks,
               Sum<__nv_bfloat16, AddWork>{{RowsOfTokens::of(rows, order, mine)}, {}, {}}, stream);
}

}  // namespace moracle::cuda
#endif
