// RMSNorm, RoPE and append for heads of 64 or 128 columns in bf16, all of whose columns rotate in
// halves: a warp keeps a head in registers, and loads all that it needs at once.
#pragma once

#include "kernels/cuda/attention/pages.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/dependent.cuh"
#include "kernels/cuda/keep.cuh"
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

/// Columns of a lane: kEach neighbours of the first half, and their partners of the second.
template <int kDim>
struct HalfHead {
  static constexpr int kEach = kDim / 64;
  float values[2][kEach];

  __device__ static int first() { return static_cast<int>(threadIdx.x) % 32 * kEach; }
  __device__ void load(const uint16_t* head) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint16_t* const from = head + half * (kDim / 2) + first();
      if constexpr (kEach == 2) {
        const uint32_t two = *reinterpret_cast<const uint32_t*>(from);
        values[half][0] = __uint_as_float(two << 16);
        values[half][1] = __uint_as_float(two & 0xffff0000u);
      } else {
        values[half][0] = bf16_to_float(*from);
      }
    }
  }
  __device__ void load(const float* weights) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) values[half][i] = weights[half * (kDim / 2) + first() + i];
    }
  }
  __device__ void store(uint16_t* head) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint16_t* const to = head + half * (kDim / 2) + first();
      if constexpr (kEach == 2) {
        *reinterpret_cast<uint32_t*>(to) =
            float_to_bf16(values[half][0]) | uint32_t{float_to_bf16(values[half][1])} << 16;
      } else {
        *to = float_to_bf16(values[half][0]);
      }
    }
  }
  /// As e4m3, from the values that store() would give.
  __device__ void store_e4m3(uint8_t* head) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        head[half * (kDim / 2) + first() + i] =
            float_to_e4m3(bf16_to_float(float_to_bf16(values[half][i])));
    }
  }
};

constexpr int kHeadWarps = 4;

template <int kDim>
__global__ void __launch_bounds__(32 * kHeadWarps) rope_heads(const RopeArgs a) {
  using Head = HalfHead<kDim>;
  const int q_heads = static_cast<int>(a.q.cols / kDim),
            kv_heads = static_cast<int>(a.k.cols / kDim);
  const int heads = q_heads + 2 * kv_heads;
  const auto all = static_cast<unsigned>(a.q.rows) * heads;
  float frequencies[Head::kEach];
#pragma unroll
  for (int i = 0; i < Head::kEach; ++i) frequencies[i] = a.rope.frequencies[Head::first() + i];
  await_earlier_kernels();
  start_later_kernels();
  for (unsigned b = blockIdx.x * kHeadWarps + threadIdx.x / 32; b < all;
       b += gridDim.x * kHeadWarps) {
    const int t = static_cast<int>(b / heads), at = static_cast<int>(b) % heads;
    const bool is_query = at < q_heads, is_key = !is_query && at < q_heads + kv_heads;
    const Matrix& from = is_query ? a.q : is_key ? a.k : a.v;
    const int number = is_query ? at : (at - q_heads) % kv_heads;
    auto* const source = static_cast<uint16_t*>(from.data) + t * from.stride + number * kDim;
    const int32_t position = a.batch.positions[t];
    Head head, weights{};
    head.load(source);
    const float* const norm = is_query ? a.rope.q_norm : is_key ? a.rope.k_norm : nullptr;
    if (norm != nullptr) weights.load(norm);
    std::byte* to = reinterpret_cast<std::byte*>(source);
    const bool bytes = !is_query && a.cache.dtype == DType::kF8E4M3;
    if (!is_query) {
      std::byte* const page = page_of(a.batch, a.batch.sequences[t], position);
      to = page + (is_key ? a.cache.keys : a.cache.values) +
           row_in_page(a.batch, number, position) * kDim * (bytes ? 1 : 2);
    }
    if (norm != nullptr) {
      float squares = 0;
#pragma unroll
      for (int i = 0; i < Head::kEach; ++i)
        squares += head.values[0][i] * head.values[0][i] + head.values[1][i] * head.values[1][i];
      for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(kAllLanes, squares, step);
      const float scale = 1.0f / sqrtf(squares / kDim + a.rope.epsilon);
#pragma unroll
      for (int i = 0; i < Head::kEach; ++i) {
        head.values[0][i] *= scale * weights.values[0][i];
        head.values[1][i] *= scale * weights.values[1][i];
      }
    }
    if (is_query || is_key) {
#pragma unroll
      for (int i = 0; i < Head::kEach; ++i) {
        float sine, cosine;
        sincosf(static_cast<float>(position) * frequencies[i], &sine, &cosine);
        sine *= a.rope.rotary.factor, cosine *= a.rope.rotary.factor;
        const float x = head.values[0][i], y = head.values[1][i];
        head.values[0][i] = x * cosine - y * sine;
        head.values[1][i] = y * cosine + x * sine;
      }
    }
    if (bytes)
      head.store_e4m3(reinterpret_cast<uint8_t*>(to));
    else
      head.store(reinterpret_cast<uint16_t*>(to));
  }
}

}  // namespace moracle::cuda
