// The gated delta rule token by token. A block keeps 32 columns of a head's state in registers: a
// thread has 4 columns of every 16th row. The state is read once and written once per step.
#include <type_traits>

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/recurrent/delta_rule.cuh"

namespace moracle::cuda {
namespace {

constexpr int kColumns = 32, kWarps = 4, kThreads = 32 * kWarps;
constexpr int kLanesOfRow = kColumns / 4, kRowsAtOnce = kThreads / kLanesOfRow;

template <bool kByChannel>
struct DeltaTokenRow {
  float q[kMostDeltaKeys], k[kMostDeltaKeys];
  float decays[kByChannel ? kMostDeltaKeys : 1];  // of the channels
};
template <bool kByChannel>
struct DeltaShared {
  DeltaTokenRow<kByChannel> rows[2];  // of this token and the next
  float squares[2][kWarps][2];
  alignas(16) float known[kWarps][kColumns], sums[kWarps][kColumns];
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
__device__ void add_product(float4& sum, float factor, const float4& x) {
  sum = {fmaf(factor, x.x, sum.x), fmaf(factor, x.y, sum.y), fmaf(factor, x.z, sum.z),
         fmaf(factor, x.w, sum.w)};
}

// A thread's inputs of one token: its part of q and k, its columns of v, and its gates, as they are
// stored. Load them one token ahead to hide the latency.
template <int kRows, bool kBf16, bool kByChannel>
struct DeltaToken {
  static constexpr int kLoads = kRows * kRowsAtOnce / kThreads;
  using Stored = std::conditional_t<kBf16, uint16_t, float>;
  Stored q[kLoads], k[kLoads], value[4], a[kByChannel ? kLoads : 1], b;

  __device__ static Stored get(const Matrix& m, int64_t row, int64_t column) {
    if constexpr (kBf16)
      return static_cast<const uint16_t*>(m.data)[row * m.stride + column];
    else
      return load(m, row, column);
  }
  __device__ static float wide(Stored x) {
    if constexpr (kBf16)
      return bf16_to_float(x);
    else
      return x;
  }

  __device__ void fetch(const DeltaArgs& args, int64_t token, int64_t head, int column) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = threadIdx.x + i * kThreads;
      const bool there = at < args.shape.key_dim;
      q[i] = there ? get(args.qkv, token, args.q_at(head) + at) : Stored{};
      k[i] = there ? get(args.qkv, token, args.k_at(head) + at) : Stored{};
      if constexpr (kByChannel) a[i] = there ? get(args.ba, token, args.a_at(head) + at) : Stored{};
    }
#pragma unroll
    for (int c = 0; c < 4; ++c)
      value[c] = column + c < args.shape.value_dim
                     ? get(args.qkv, token, args.v_at(head) + column + c)
                     : Stored{};
    if constexpr (!kByChannel) a[0] = get(args.ba, token, args.a_at(head));
    b = get(args.ba, token, args.b_at(head));
  }
  // Puts q, k and decays of channels into shared memory, and the sums of the squares of q and k,
  // warp by warp.
  __device__ void put(const DeltaArgs& args, int64_t head, DeltaShared<kByChannel>& shared,
                      int stage) const {
    float squares[2] = {};
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = threadIdx.x + i * kThreads;
      const float own_q = wide(q[i]), own_k = wide(k[i]);
      shared.rows[stage].q[at] = own_q, shared.rows[stage].k[at] = own_k;
      if constexpr (kByChannel) {
        shared.rows[stage].decays[at] =
            at < args.shape.key_dim ? args.channel_decay(head, at, wide(a[i])) : 0.0f;
      }
      squares[0] = fmaf(own_q, own_q, squares[0]), squares[1] = fmaf(own_k, own_k, squares[1]);
    }
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      for (int step = 16; step > 0; step /= 2)
        squares[which] += __shfl_xor_sync(kAllLanes, squares[which], step);
      if (threadIdx.x % 32 == 0) shared.squares[stage][threadIdx.x / 32][which] = squares[which];
    }
  }
};

// Four columns of every 16th row of a head's matrix.
template <int kRows>
struct DeltaState {
  float4 rows[kRows];

  template <class Each>
  __device__ void each(const DeltaArgs& a, int column, const Each& each_row) {
    const auto value_dim = static_cast<int>(a.shape.value_dim);
    const bool whole = value_dim % 4 == 0 && column < value_dim;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = threadIdx.x / kLanesOfRow + i * kRowsAtOnce;
      if (row >= a.shape.key_dim) continue;
      const int at = row * value_dim + column;
      if (whole) {
        each_row(rows[i], at);
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (column + c < value_dim) each_row((&rows[i].x)[c], at + c);
      }
    }
  }
  __device__ void load(const DeltaArgs& a, const float* from, int column) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) rows[i] = {};
    if (from == nullptr) return;
    each(a, column, [&](auto& x, int at) {
      x = *reinterpret_cast<const std::remove_reference_t<decltype(x)>*>(from + at);
    });
  }
  __device__ void store(const DeltaArgs& a, float* to, int column) {
    each(a, column, [&](auto& x, int at) {
      *reinterpret_cast<std::remove_reference_t<decltype(x)>*>(to + at) = x;
    });
  }
};

// kSingle: every sequence has one token. All variants give the same bits: every sum of products is
// an explicit fmaf.
template <int kRows, bool kBf16, bool kSingle, bool kByChannel>
__global__ void __launch_bounds__(kThreads, kRows > 8                ? 2
                                            : kSingle && !kByChannel ? 7
                                            : kSingle                ? 6
                                                      : 4) delta_step(const DeltaArgs a) {
  pdl_wait();
  pdl_launch_dependents();
  __shared__ DeltaShared<kByChannel> shared;
  const auto value_dim = static_cast<int>(a.shape.value_dim);
  const auto slices = static_cast<unsigned>((value_dim + kColumns - 1) / kColumns),
             heads = static_cast<unsigned>(a.shape.num_value_heads);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = threadIdx.x / kLanesOfRow, own = threadIdx.x % kLanesOfRow * 4;
  const float root = sqrtf(static_cast<float>(a.shape.key_dim));
  const unsigned all = static_cast<unsigned>(a.batch.num_sequences) * heads * slices;
  for (unsigned b = blockIdx.x; b < all; b += gridDim.x) {
    const unsigned sequence = b / (heads * slices), head = b / slices % heads;
    const int64_t begin = kSingle ? sequence : a.batch.first_token[sequence],
                  end = kSingle ? sequence + 1 : a.batch.first_token[sequence + 1];
    if (begin == end || end - begin > a.recurrent_tokens) continue;
    const int slice = static_cast<int>(b % slices) * kColumns, column = slice + own;
    DeltaToken<kRows, kBf16, kByChannel> now, next;
    now.fetch(a, begin, head, column);
    DeltaState<kRows> state;
    state.load(a, a.state_before(sequence, head), column);
    __syncthreads();  // wait until the previous iteration's rows have been read
    now.put(a, head, shared, 0);
    __syncthreads();
    for (int64_t t = begin; t < end; ++t) {
      const int stage = kSingle ? 0 : static_cast<int>((t - begin) % 2);
      const bool is_last = kSingle || t + 1 == end;
      if (!is_last) next.fetch(a, t + 1, head, column);
      const DeltaTokenRow<kByChannel>& row = shared.rows[stage];
      float4 known{};
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int at = first_row + i * kRowsAtOnce;
        float4& kept = state.rows[i];
        if constexpr (kByChannel) {
          const float decay = row.decays[at];
          kept = {decay * kept.x, decay * kept.y, decay * kept.z, decay * kept.w};
        }
        add_product(known, row.k[at], kept);
      }
      known = sum_of_rows(known);
      if (lane < kLanesOfRow) *reinterpret_cast<float4*>(&shared.known[warp][own]) = known;
      float squares[2] = {};
#pragma unroll
      for (int w = 0; w < kWarps; ++w)
        squares[0] += shared.squares[stage][w][0], squares[1] += shared.squares[stage][w][1];
      const float q_scale = 1.0f / (sqrtf(squares[0] + kDeltaEpsilon) * root),
                  k_scale = 1.0f / sqrtf(squares[1] + kDeltaEpsilon);
      float decay = 1, strength;  // with kByChannel the state has decayed
      if constexpr (kByChannel) {
        strength = 1.0f / (1.0f + expf(-now.wide(now.b))) * k_scale;
      } else {
        const DeltaGates gates = a.gates(head, now.wide(now.a[0]), now.wide(now.b));
        decay = expf(gates.log_decay), strength = gates.strength * k_scale;
      }
      const float forget = -(decay * k_scale);
      if (!is_last) next.put(a, head, shared, 1 - stage);
      __syncthreads();
      float4 change{};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) sum += shared.known[w][own + c];
        (&change.x)[c] = fmaf(forget, sum, now.wide(now.value[c])) * strength;
      }
      float4 sums{};
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int at = first_row + i * kRowsAtOnce;
        float4& kept = state.rows[i];
        if constexpr (!kByChannel)
          kept = {decay * kept.x, decay * kept.y, decay * kept.z, decay * kept.w};
        add_product(kept, row.k[at], change);
        add_product(sums, row.q[at], kept);
      }
      sums = sum_of_rows(sums);
      if (lane < kLanesOfRow) *reinterpret_cast<float4*>(&shared.sums[warp][own]) = sums;
      __syncthreads();
      if (warp == 0 && slice + lane < value_dim) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) sum += shared.sums[w][lane];
        store(a.out, t, head * value_dim + slice + lane, sum * q_scale);
      }
      now = next;
    }
    state.store(a, a.state_after(sequence, head), column);
  }
}

template <int kRows, bool kByChannel>
Status launch_step(const DeltaArgs& a, const Queue& queue, Stream stream) {
  const bool is_bf16 = a.qkv.dtype == DType::kBF16 && a.ba.dtype == DType::kBF16;
  const bool single = a.batch.most_tokens == 1 && a.batch.fewest_tokens == 1;
  const auto kernel = !is_bf16 ? delta_step<kRows, false, false, kByChannel>
                      : single ? delta_step<kRows, true, true, kByChannel>
                               : delta_step<kRows, true, false, kByChannel>;
  const int64_t slices = (a.shape.value_dim + kColumns - 1) / kColumns;
  return launch_early(queue, stream, "delta_step", kernel,
                      a.batch.num_sequences * a.shape.num_value_heads * slices, kThreads, 0, a);
}

}  // namespace

Status step_delta_rule(const DeltaArgs& args, const Queue& queue, Stream stream) {
  constexpr int kMostRows = kMostDeltaKeys / kRowsAtOnce;
  const bool few = args.shape.key_dim <= 8 * kRowsAtOnce;
  if (args.shape.by_channel) {
    return few ? launch_step<8, true>(args, queue, stream)
               : launch_step<kMostRows, true>(args, queue, stream);
  }
  return few ? launch_step<8, false>(args, queue, stream)
             : launch_step<kMostRows, false>(args, queue, stream);
}

}  // namespace moracle::cuda
