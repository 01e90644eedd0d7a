// Sums of 8 bytes of values over ranks: in f32, rounded once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace moracle::cuda {

template <class T>
struct Summed;
template <>
struct Summed<float> {
  float sum[2] = {};
  __device__ void add(uint2 v) { sum[0] += __uint_as_float(v.x), sum[1] += __uint_as_float(v.y); }
  __device__ uint2 rounded() const { return {__float_as_uint(sum[0]), __float_as_uint(sum[1])}; }
};
template <class Pair>
struct SummedPairs {
  float2 sum[2] = {};
  __device__ void add(uint2 v) {
    const uint32_t words[2] = {v.x, v.y};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 pair = Pair::widen(words[i]);
      sum[i].x += pair.x, sum[i].y += pair.y;
    }
  }
  __device__ uint2 rounded() const {
    return {Pair::narrow(sum[0]), Pair::narrow(sum[1])};
  }
};
struct PairOfBf16 {
  static __device__ float2 widen(uint32_t w) {
    return {__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u)};
  }
  static __device__ uint32_t narrow(float2 v) {
    const __nv_bfloat162 pair = __float22bfloat162_rn(v);
    return reinterpret_cast<const uint32_t&>(pair);
  }
};
struct PairOfF16 {
  static __device__ float2 widen(uint32_t w) {
    return __half22float2(reinterpret_cast<const __half2&>(w));
  }
  static __device__ uint32_t narrow(float2 v) {
    const __half2 pair = __float22half2_rn(v);
    return reinterpret_cast<const uint32_t&>(pair);
  }
};
template <>
struct Summed<__nv_bfloat16> : SummedPairs<PairOfBf16> {};
template <>
struct Summed<__half> : SummedPairs<PairOfF16> {};

}  // namespace moracle::cuda
