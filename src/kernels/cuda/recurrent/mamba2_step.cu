// Mamba-2 token by token. A block keeps 32 columns of a head's state in registers: a thread has 4
// columns of every 16th row. The state is read once and written once per step.
#include <type_traits>

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/recurrent/mamba2.cuh"

namespace moracle::cuda {
namespace {

constexpr int kColumns = 32, kWarps = 4, kThreads = 32 * kWarps;
constexpr int kLanesOfRow = kColumns / 4, kRowsAtOnce = kThreads / kLanesOfRow;

struct MambaTokenRow {
  float b[kMostMambaStates], c[kMostMambaStates];
};
struct MambaShared {
  MambaTokenRow rows[2];  // of this token and the next
  float sums[kWarps][kColumns];
};

// Adds the values of the four lanes that have the same columns.
__device__ float4 sum_of_rows(float4 x) {
#pragma unroll
  for (int step = 8; step <= 16; step *= 2) {
    x.x += __shfl_xor_sync(kAllLanes, x.x, step);
    x.y += __shfl_xor_sync(kAllLanes, x.y, step);
    x.z += __shfl_xor_sync(kAllLanes, x.z, step);
    x.w += __shfl_xor_sync(kAllLanes, x.w, step);
  }
  return x;
}

template <bool kBf16>
__device__ float get(const Matrix& m, int64_t row, int64_t column) {
  if constexpr (kBf16)
    return bf16_to_float(static_cast<const uint16_t*>(m.data)[row * m.stride + column]);
  else
    return load(m, row, column);
}

// A thread's inputs of one token: its part of b and c, its columns of x, and dt. Load them one
// token ahead to hide the latency.
template <int kRows, bool kBf16>
struct MambaToken {
  static constexpr int kLoads = kRows * kRowsAtOnce / kThreads;
  float b[kLoads], c[kLoads], x[4], dt;

  __device__ void fetch(const Mamba2Args& args, int64_t token, int64_t head, int column) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = threadIdx.x + i * kThreads;
      const bool there = at < args.shape.state_dim;
      b[i] = there ? get<kBf16>(args.xbc, token, args.b_at(head) + at) : 0.0f;
      c[i] = there ? get<kBf16>(args.xbc, token, args.c_at(head) + at) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      x[i] = column + i < args.shape.head_dim
                 ? get<kBf16>(args.xbc, token, args.x_at(head) + column + i)
                 : 0.0f;
    dt = get<kBf16>(args.dt, token, head);
  }
  __device__ void put(MambaTokenRow& row) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = threadIdx.x + i * kThreads;
      row.b[at] = b[i], row.c[at] = c[i];
    }
  }
};

// Four columns of every 16th row of a head's matrix.
template <int kRows>
struct MambaState {
  float4 rows[kRows];

  template <class Each>
  __device__ void each(const Mamba2Args& a, int column, const Each& each_row) {
    const auto head_dim = static_cast<int>(a.shape.head_dim);
    const bool whole = head_dim % 4 == 0 && column < head_dim;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = threadIdx.x / kLanesOfRow + i * kRowsAtOnce;
      if (row >= a.shape.state_dim) continue;
      const int at = row * head_dim + column;
      if (whole) {
        each_row(rows[i], at);
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (column + c < head_dim) each_row((&rows[i].x)[c], at + c);
      }
    }
  }
  __device__ void load(const Mamba2Args& a, const float* from, int column) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) rows[i] = {};
    if (from == nullptr) return;
    each(a, column, [&](auto& x, int at) {
      x = *reinterpret_cast<const std::remove_reference_t<decltype(x)>*>(from + at);
    });
  }
  __device__ void store(const Mamba2Args& a, float* to, int column) {
    each(a, column, [&](auto& x, int at) {
      *reinterpret_cast<std::remove_reference_t<decltype(x)>*>(to + at) = x;
    });
  }
};

// All variants give the same bits: every sum of products is an explicit fmaf.
template <int kRows, bool kBf16>
__global__ void __launch_bounds__(kThreads, kRows > 8 ? 2 : 5) mamba2_step(const Mamba2Args a) {
  pdl_wait();
  pdl_launch_dependents();
  __shared__ MambaShared shared;
  const auto head_dim = static_cast<int>(a.shape.head_dim);
  const auto slices = static_cast<unsigned>((head_dim + kColumns - 1) / kColumns),
             heads = static_cast<unsigned>(a.shape.num_heads);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = threadIdx.x / kLanesOfRow, own = threadIdx.x % kLanesOfRow * 4;
  const unsigned all = static_cast<unsigned>(a.batch.num_sequences) * heads * slices;
  for (unsigned g = blockIdx.x; g < all; g += gridDim.x) {
    const unsigned sequence = g / (heads * slices), head = g / slices % heads;
    const int64_t begin = a.batch.first_token[sequence], end = a.batch.first_token[sequence + 1];
    if (begin == end || end - begin > a.recurrent_tokens) continue;
    const int slice = static_cast<int>(g % slices) * kColumns, column = slice + own;
    const float skip = a.d[head];
    MambaToken<kRows, kBf16> now, next;
    now.fetch(a, begin, head, column);
    MambaState<kRows> state;
    state.load(a, a.state_before(sequence, head), column);
    __syncthreads();  // wait until the previous iteration's rows have been read
    now.put(shared.rows[0]);
    __syncthreads();
    for (int64_t t = begin; t < end; ++t) {
      const auto stage = static_cast<int>((t - begin) % 2);
      const bool is_last = t + 1 == end;
      if (!is_last) next.fetch(a, t + 1, head, column);
      const Mamba2Gates gates = a.gates(head, now.dt);
      const float decay = expf(gates.log_decay);
      const MambaTokenRow& row = shared.rows[stage];
      float change[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) change[c] = gates.step * now.x[c];
      float4 sums{};
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int at = first_row + i * kRowsAtOnce;
        const float b = row.b[at], c = row.c[at];
        float4& kept = state.rows[i];
        kept = {fmaf(b, change[0], decay * kept.x), fmaf(b, change[1], decay * kept.y),
                fmaf(b, change[2], decay * kept.z), fmaf(b, change[3], decay * kept.w)};
        sums = {fmaf(c, kept.x, sums.x), fmaf(c, kept.y, sums.y), fmaf(c, kept.z, sums.z),
                fmaf(c, kept.w, sums.w)};
      }
      sums = sum_of_rows(sums);
      if (lane < kLanesOfRow) *reinterpret_cast<float4*>(&shared.sums[warp][own]) = sums;
      if (!is_last) next.put(shared.rows[1 - stage]);
      __syncthreads();
      if (threadIdx.x < kLanesOfRow) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float sum = skip * now.x[c];
#pragma unroll
          for (int w = 0; w < kWarps; ++w) sum += shared.sums[w][own + c];
          if (column + c < head_dim) store(a.out, t, head * head_dim + column + c, sum);
        }
      }
      __syncthreads();  // wait until the sums have been read
      now = next;
    }
    state.store(a, a.state_after(sequence, head), column);
  }
}

template <int kRows>
Status launch_step(const Mamba2Args& a, const Queue& queue, Stream stream) {
  const bool is_bf16 = a.xbc.dtype == DType::kBF16 && a.dt.dtype == DType::kBF16;
  const auto kernel = is_bf16 ? mamba2_step<kRows, true> : mamba2_step<kRows, false>;
  const int64_t slices = (a.shape.head_dim + kColumns - 1) / kColumns;
  return launch_early(queue, stream, "mamba2_step", kernel,
                      a.batch.num_sequences * a.shape.num_heads * slices, kThreads, 0, a);
}

}  // namespace

Status step_mamba2(const Mamba2Args& args, const Queue& queue, Stream stream) {
  if (args.shape.state_dim <= 8 * kRowsAtOnce) return launch_step<8>(args, queue, stream);
  return launch_step<kMostMambaStates / kRowsAtOnce>(args, queue, stream);
}

}  // namespace moracle::cuda
