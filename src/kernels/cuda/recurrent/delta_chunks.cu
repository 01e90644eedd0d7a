// The part of the chunked gated delta rule that depends on the state. A block goes through the
// chunks of a sequence with 32 value columns of one head. Two state warps keep the state in
// accumulators, 16 columns each. They exchange nothing, because columns do not depend on each
// other. Two output warps compute the outputs of the previous chunk, from the state and the changes
// that the state warps store in shared memory.
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/recurrent/delta_chunk.cuh"

namespace moracle::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kColumns = 32, kSlices = kHeadDim / kColumns;
constexpr int kKeyTiles = kHeadDim / 8;  // of 8 columns of a product

// Inputs of the state warps and of the output warps for one chunk.
struct StateInputs {
  Swizzled<kChunk, kHeadDim / 8> k;
  Swizzled<kChunk, kChunk / 8> change;
  Swizzled<kChunk, kColumns / 8> v;
  float known[kChunk], kept[kChunk], last[16];
};
struct OutputInputs {
  Swizzled<kChunk, kHeadDim / 8> q;
  Swizzled<kChunk, kChunk / 8> scores;
  float asked[kChunk];
};
// Operands that a state warp leaves for the output warp of the same columns: per lane the bf16
// pairs of the state before the chunk and of the changes.
struct Left {
  uint4 state[kKeyTiles / 2][32], changes[kTokenTiles / 2][32];
};
struct ChunkShared {
  StateInputs state[2];
  OutputInputs output[2];
  Left left[2][2];  // [buffer][warp]
};

// The state of a warp: 16 value columns, transposed.
struct ChunkState {
  Sums<kKeyTiles> sums;

  // `columns`: the warp's first column of the head's matrix; null: zeros.
  __device__ void load(const float* columns) {
    each([&](int row, int column, float& x) {
      x = columns != nullptr ? columns[row * kHeadDim + column] : 0.0f;
    });
  }
  __device__ void store(float* columns) {
    each([&](int row, int column, float& x) { columns[row * kHeadDim + column] = x; });
  }

  // Advances by a chunk, and leaves its state before and its changes.
  __device__ void advance(StateInputs& in, int columns, Left& left) {
    const int lane = threadIdx.x % 32;
    Sums<kTokenTiles> changes = {};
    {
      uint32_t before[kKeyTiles / 2][4];
      to_operands(sums, before);
#pragma unroll
      for (int i = 0; i < kKeyTiles / 2; ++i)
        left.state[i][lane] = {before[i][0], before[i][1], before[i][2], before[i][3]};
      multiply_rows<false, kKeyTiles / 4>(changes, before, in.k);
    }
    scale_columns(changes, in.known);
#pragma unroll
    for (int n = 0; n < kTokenTiles; n += 2) {
      uint32_t values[4];
      ldmatrix_x4<true>(values,
                        in.v.at(8 * n + lane / 16 * 8 + lane % 8, columns / 8 + lane / 8 % 2));
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        changes[n + c / 2][c % 2 * 2] = bf16_low(values[c]) - changes[n + c / 2][c % 2 * 2];
        changes[n + c / 2][c % 2 * 2 + 1] =
            bf16_high(values[c]) - changes[n + c / 2][c % 2 * 2 + 1];
      }
    }
    uint32_t operands[kTokenTiles / 2][4];
    to_operands(changes, operands);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)
      changes[n][0] = changes[n][1] = changes[n][2] = changes[n][3] = 0;
    multiply_rows<true, kTokenTiles / 4>(changes, operands, in.change);
    to_operands(changes, operands);
#pragma unroll
    for (int i = 0; i < kTokenTiles / 2; ++i)
      left.changes[i][lane] = {operands[i][0], operands[i][1], operands[i][2], operands[i][3]};
    scale_columns(changes, in.kept);
    to_operands(changes, operands);
    const float last = in.last[0];
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[n][c] *= last;
    }
#pragma unroll
    for (int i = 0; i < kTokenTiles / 2; ++i) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t pairs[4];
        ldmatrix_x4<true>(pairs, in.k.at(16 * i + lane / 8 % 2 * 8 + lane % 8, n + lane / 16));
        mma_bf16(sums[n], operands[i], pairs[0], pairs[1]);
        mma_bf16(sums[n + 1], operands[i], pairs[2], pairs[3]);
      }
    }
  }

 private:
  template <class Each>
  __device__ void each(const Each& each_one) {
    const int g = threadIdx.x % 32 / 4, k = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) each_one(8 * n + 2 * k + c % 2, g + c / 2 * 8, sums[n][c]);
    }
  }
};

// Outputs of `count` tokens; `to` is the warp's first column of the first token.
__device__ void output(OutputInputs& in, const Left& left, uint16_t* to, int64_t stride,
                       int count) {
  const int lane = threadIdx.x % 32;
  Sums<kTokenTiles> sums = {};
  {
    uint32_t state[kKeyTiles / 2][4];
#pragma unroll
    for (int i = 0; i < kKeyTiles / 2; ++i) {
      const uint4 four = left.state[i][lane];
      state[i][0] = four.x, state[i][1] = four.y, state[i][2] = four.z, state[i][3] = four.w;
    }
    multiply_rows<false, kKeyTiles / 4>(sums, state, in.q);
  }
  scale_columns(sums, in.asked);
  uint32_t changes[kTokenTiles / 2][4];
#pragma unroll
  for (int i = 0; i < kTokenTiles / 2; ++i) {
    const uint4 four = left.changes[i][lane];
    changes[i][0] = four.x, changes[i][1] = four.y, changes[i][2] = four.z, changes[i][3] = four.w;
  }
  multiply_rows<true, kTokenTiles / 4>(sums, changes, in.scores);
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    const int token = 8 * n + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t pair = movmatrix_trans(to_bf16_pair(sums[n][2 * half], sums[n][2 * half + 1]));
      if (token < count)
        *reinterpret_cast<uint32_t*>(to + token * stride + 8 * half + lane % 4 * 2) = pair;
    }
  }
}

// The output warps have fewer products, so they copy the inputs of all warps.
constexpr int kFetchers = kThreads / 2;
__device__ int fetcher() {
  return static_cast<int>(threadIdx.x) - kFetchers;
}

// Copies rows of bf16, zeros after `count` rows. `from` is the first; rows past `count` are not
// read.
template <int kEights>
__device__ void fetch_rows(Swizzled<kChunk, kEights>& to, const uint16_t* from, int64_t stride,
                           int count) {
  constexpr int kRowsAtOnce = kFetchers / kEights;
  const int first = fetcher() / kEights, eight = fetcher() % kEights;
  const uint16_t* source = from + first * stride + 8 * eight;
  if (count == kChunk) {
#pragma unroll
    for (int row = 0; row < kChunk; row += kRowsAtOnce, source += kRowsAtOnce * stride)
      cp_async_16(to.at(row + first, eight), source, true);
  } else {
    for (int row = first; row < kChunk; row += kRowsAtOnce, source += kRowsAtOnce * stride)
      cp_async_16(to.at(row, eight), row < count ? source : from, row < count);
  }
}
__device__ void fetch_floats(float* to, const float* from, int count) {
  for (int i = fetcher(); i < count / 4; i += kFetchers)
    cp_async_16(to + 4 * i, from + 4 * i, true);
}

// One block per SM on Hopper: two state warps with 64 accumulators of state each.
__global__ void __launch_bounds__(kThreads) delta_chunks(const DeltaArgs a, DeltaTiles tiles) {
  pdl_wait();
  pdl_launch_dependents();
  extern __shared__ uint4 delta_shared[];
  auto& shared = *reinterpret_cast<ChunkShared*>(delta_shared);
  const int warp = threadIdx.x / 32;
  const int64_t heads = a.shape.num_value_heads;
  for (int64_t b = blockIdx.x; b < a.batch.num_sequences * heads * kSlices; b += gridDim.x) {
    const int64_t sequence = b / (heads * kSlices), head = b / kSlices % heads;
    const int slice = static_cast<int>(b % kSlices) * kColumns;
    const int64_t begin = a.batch.first_token[sequence], end = a.batch.first_token[sequence + 1];
    if (end - begin <= a.recurrent_tokens) continue;
    const int64_t first_chunk = first_chunk_of(a.batch, sequence);
    const auto first = static_cast<int>(max(int64_t{0}, tiles.first - first_chunk));
    const auto last = static_cast<int>(
        min((end - begin + kChunk - 1) / kChunk, tiles.first + tiles.count - first_chunk));
    if (first >= last) continue;
    const auto tile_of = [&](int chunk) -> const DeltaTile& {
      return tiles.tiles[(first_chunk + chunk - tiles.first) * heads + head];
    };
    const auto count_of = [&](int chunk) {
      return static_cast<int>(min(end - begin - int64_t{chunk} * kChunk, int64_t{kChunk}));
    };
    const auto row_of = [&](int chunk, int64_t column) {
      return static_cast<const uint16_t*>(a.qkv.data) +
             (begin + int64_t{chunk} * kChunk) * a.qkv.stride + column;
    };
    const auto fetch_state = [&](int chunk) {
      StateInputs& to = shared.state[chunk % 2];
      const DeltaTile& tile = tile_of(chunk);
      const int count = count_of(chunk);
      fetch_rows(to.k, row_of(chunk, a.k_at(head)), a.qkv.stride, count);
      fetch_rows(to.change, tile.change, kChunk, kChunk);
      fetch_rows(to.v, row_of(chunk, a.v_at(head) + slice), a.qkv.stride, count);
      fetch_floats(to.known, tile.known, 2 * kChunk + 16);
    };
    const auto fetch_output = [&](int chunk) {
      OutputInputs& to = shared.output[chunk % 2];
      const DeltaTile& tile = tile_of(chunk);
      fetch_rows(to.q, row_of(chunk, a.q_at(head)), a.qkv.stride, count_of(chunk));
      fetch_rows(to.scores, tile.scores, kChunk, kChunk);
      fetch_floats(to.asked, tile.asked, kChunk);
    };
    __syncthreads();  // wait until the previous iteration's inputs have been read
    if (warp >= 2) fetch_state(first);
    cp_async_commit();
    const int columns = warp % 2 * 16;
    ChunkState state;
    if (warp < 2) {
      const float* const from =
          first == 0 ? a.state_before(sequence, head) : a.state_after(sequence, head);
      state.load(from != nullptr ? from + slice + columns : nullptr);
    }
    // In each iteration the state warps take a chunk, and the output warps the previous chunk.
    for (int chunk = first; chunk <= last; ++chunk) {
      cp_async_wait<0>();
      __syncthreads();
      if (warp >= 2) {
        if (chunk + 1 < last) fetch_state(chunk + 1);
        if (chunk < last) fetch_output(chunk);
      }
      cp_async_commit();
      if (warp < 2) {
        if (chunk < last)
          state.advance(shared.state[chunk % 2], columns, shared.left[chunk % 2][warp]);
      } else if (chunk > first) {
        const int before = chunk - 1;
        auto* const to = static_cast<uint16_t*>(a.out.data) +
                         (begin + int64_t{before} * kChunk) * a.out.stride + head * kHeadDim +
                         slice + columns;
        output(shared.output[before % 2], shared.left[before % 2][warp - 2], to, a.out.stride,
               count_of(before));
      }
    }
    cp_async_wait<0>();
    if (warp < 2) state.store(a.state_after(sequence, head) + slice + columns);
  }
}

}  // namespace

bool has_room_for_chunks(const Queue& queue) {
  int bytes = 0;
  return queue.capability >= 80 &&
         cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, queue.index) ==
             cudaSuccess &&
         bytes >= static_cast<int>(sizeof(ChunkShared));
}

Status run_chunks(const DeltaArgs& args, const DeltaTiles& tiles, const Queue& queue,
                  Stream stream) {
  {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
    MORACLE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(delta_chunks),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      sizeof(ChunkShared)));
  }
  return launch_early(queue, stream, "delta_chunks", delta_chunks,
                      args.batch.num_sequences * args.shape.num_value_heads * kSlices, kThreads,
                      sizeof(ChunkShared), args, tiles);
}

}  // namespace moracle::cuda
