// RMSNorm, RoPE and append for heads of 64 or 128 columns in bf16, all of whose columns rotate in
// halves: 16 or 8 lanes keep a head in registers, and
// load all that they need at once.
#pragma once

#include "kernels/cuda/attention/pages.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/keep.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/ops.h"

namespace moracle::cuda {

struct RopeArgs {
  Matrix q, k, v;
  QkNormRope rope;
  Batch batch;
  LayerCache cache;
  DeviceErrorCell* device_error;
};

/// True if rope_heads supports these heads.
inline bool ropes_in_registers(const RopeArgs& a) {
  const RotaryShape& rotary = a.rope.rotary;
  const auto fits = [](const Matrix& m) {
    return m.dtype == DType::kBF16 && reinterpret_cast<uintptr_t>(m.data) % 16 == 0 &&
           m.stride % 8 == 0;
  };
  return (rotary.head_dim == 64 || rotary.head_dim == 128) && rotary.first == 0 &&
         !rotary.interleaved && 2 * rotary.num_pairs == rotary.head_dim &&
         (a.cache.dtype == DType::kBF16 || a.cache.dtype == DType::kF8E4M3) && fits(a.q) &&
         fits(a.k) && fits(a.v);
}

/// Columns of a lane: four neighbours of the first half, and their partners of the second.
template <int kDim>
struct HalfHead {
  static constexpr int kLanes = kDim / 8;
  float values[2][4];

  __device__ static int first() { return static_cast<int>(threadIdx.x) % kLanes * 4; }
  __device__ void load(const uint16_t* head) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2 four = *reinterpret_cast<const uint2*>(head + half * (kDim / 2) + first());
      values[half][0] = __uint_as_float(four.x << 16);
      values[half][1] = __uint_as_float(four.x & 0xffff0000u);
      values[half][2] = __uint_as_float(four.y << 16);
      values[half][3] = __uint_as_float(four.y & 0xffff0000u);
    }
  }
  __device__ void load(const float* weights) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[half][i] = weights[half * (kDim / 2) + first() + i];
    }
  }
  /// Select each number separately: selecting between references would put both heads into local
  /// memory.
  __device__ HalfHead or_else(const HalfHead& other, bool is_this) const {
    HalfHead chosen;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        chosen.values[half][i] = is_this ? values[half][i] : other.values[half][i];
    }
    return chosen;
  }
  __device__ void norm(const HalfHead& weights, float epsilon) {
    // Write each fma out: the number of tokens in a step must not change how the compiler fuses.
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      squares = __fmaf_rn(values[0][i], values[0][i], squares);
      squares = __fmaf_rn(values[1][i], values[1][i], squares);
    }
    for (int step = kLanes / 2; step > 0; step /= 2)
      squares += __shfl_xor_sync(kAllLanes, squares, step);
    const float scale = 1.0f / sqrtf(__fmaf_rn(squares, 1.0f / kDim, epsilon));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[half][i] *= scale * weights.values[half][i];
    }
  }
  __device__ void rotate(const float (&sine)[4], const float (&cosine)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = values[0][i], y = values[1][i];
      values[0][i] = __fmaf_rn(x, cosine[i], -__fmul_rn(y, sine[i]));
      values[1][i] = __fmaf_rn(y, cosine[i], __fmul_rn(x, sine[i]));
    }
  }
  __device__ void store(uint16_t* head) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<uint2*>(head + half * (kDim / 2) + first()) = {
          to_bf16_pair(values[half][0], values[half][1]),
          to_bf16_pair(values[half][2], values[half][3])};
  }
  /// As e4m3 codes of the values that store() would give, times `factor`.
  __device__ void store_e4m3(uint8_t* head, float factor) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t four = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        four |= uint32_t{float_to_e4m3(bf16_to_float(float_to_bf16(values[half][i])) * factor)}
                << (8 * i);
      *reinterpret_cast<uint32_t*>(head + half * (kDim / 2) + first()) = four;
    }
  }
};

constexpr int kHeadWarps = 4;
/// From this many tokens on a warp takes all heads of a token: they share sines and cosines. Two or
/// four heads are in a warp's lanes, and the loads of four times as many are in flight at once.
constexpr int64_t kManyRopeRows = 2048;
constexpr int kHeadsOfLane = 4;
/// Heads that a warp loads at once.
constexpr int heads_of_warp(int64_t dim, bool many) {
  return static_cast<int>(32 * 8 / dim) * (many ? kHeadsOfLane : 1);
}

template <int kDim, bool kMany>
__global__ void __launch_bounds__(32 * kHeadWarps) rope_heads(const RopeArgs a) {
  using Head = HalfHead<kDim>;
  constexpr int kTogether = heads_of_warp(kDim, kMany), kSteps = kMany ? kHeadsOfLane : 1;
  const int q_heads = static_cast<int>(a.q.cols / kDim),
            kv_heads = static_cast<int>(a.k.cols / kDim);
  const int heads = q_heads + 2 * kv_heads;
  const int tiles = kMany ? 1 : (heads + kTogether - 1) / kTogether;  // of a token
  const int own = static_cast<int>(threadIdx.x) % 32 / Head::kLanes;
  const auto all = static_cast<unsigned>(a.q.rows) * tiles;
  float frequencies[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) frequencies[i] = a.rope.frequencies[Head::first() + i];
  Head q_norm{}, k_norm{};
  if (a.rope.q_norm != nullptr) q_norm.load(a.rope.q_norm);
  if (a.rope.k_norm != nullptr) k_norm.load(a.rope.k_norm);
  // Attention may start while the kernel before this one still runs. Until its own wait it reads
  // only tables and pages of earlier steps. Attention of the previous step lies between two calls
  // for a cache, so those pages are complete.
  pdl_launch_dependents();
  bool waits = true;
  for (unsigned b = blockIdx.x * kHeadWarps + threadIdx.x / 32; b < all;
       b += gridDim.x * kHeadWarps) {
    const int t = static_cast<int>(b / tiles), start = static_cast<int>(b) % tiles * kTogether;
    const int end = kMany ? heads : start + 1;
    // Of one of k and v, if it is not of q.
    const auto number_of = [&](int at) {
      return at < q_heads ? at : at < q_heads + kv_heads ? at - q_heads : at - q_heads - kv_heads;
    };
    const auto source_of = [&](int at) {
      const Matrix& from = at < q_heads ? a.q : at < q_heads + kv_heads ? a.k : a.v;
      return static_cast<uint16_t*>(from.data) + t * from.stride + number_of(at) * kDim;
    };
    // Tables were complete before the previous kernel began.
    const int32_t position = a.batch.positions[t];
    std::byte* page = nullptr;
    if (kMany || start + kTogether > q_heads)
      page = page_of(a.batch, a.batch.sequences[t], position);
    float sine[4] = {}, cosine[4] = {};
    if (start < q_heads + kv_heads) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sincosf(static_cast<float>(position) * frequencies[i], &sine[i], &cosine[i]);
        sine[i] *= a.rope.rotary.factor, cosine[i] *= a.rope.rotary.factor;
      }
    }
    if (waits) pdl_wait();
    waits = false;
#pragma unroll 1
    for (int first = start; first < end; first += kTogether) {
      Head many[kSteps];
      const auto head_at = [&](int step) { return first + step * (kTogether / kSteps) + own; };
#pragma unroll
      for (int i = 0; i < kSteps; ++i) many[i].load(source_of(min(head_at(i), heads - 1)));
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        Head& head = many[i];
        const int at = head_at(i);
        const bool is_query = at < q_heads, is_key = !is_query && at < q_heads + kv_heads;
        Head normed = head;  // all lanes take part in the sums
        normed.norm(q_norm.or_else(k_norm, is_query), a.rope.epsilon);
        if ((is_query ? a.rope.q_norm : is_key ? a.rope.k_norm : nullptr) != nullptr) head = normed;
        if (is_query || is_key) head.rotate(sine, cosine);
        if (at >= heads) continue;
        if (is_query) {
          head.store(source_of(at));
          continue;
        }
        const bool bytes = a.cache.dtype == DType::kF8E4M3;
        std::byte* const to =
            page + (is_key ? a.cache.keys : a.cache.values) +
            row_in_page(a.batch, number_of(at), position) * kDim * (bytes ? 1 : 2);
        if (bytes)
          head.store_e4m3(reinterpret_cast<uint8_t*>(to),
                          1.0f / (is_key ? a.cache.key_scale : a.cache.value_scale));
        else
          head.store(reinterpret_cast<uint16_t*>(to));
      }
    }
  }
}

}  // namespace moracle::cuda
