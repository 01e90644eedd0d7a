// Elements of the KV cache, converted to bf16.
#pragma once

#include "kernels/cuda/ptx/convert.cuh"
#include "moracle/quant.h"

namespace moracle::cuda {

/// Bytes of an element of a cache.
constexpr int cache_element(DType cache) {
  return cache == DType::kF32 ? 4 : cache == DType::kF8E4M3 ? 1 : 2;
}

/// Loads eight numbers of a cache as bf16. The conversion is exact where activations are bf16.
template <DType kCache>
__device__ uint4 load_eight(const std::byte* from) {
  if constexpr (kCache == DType::kBF16) {
    return __ldg(reinterpret_cast<const uint4*>(from));
  } else if constexpr (kCache == DType::kF32) {
    const float4 a = __ldg(reinterpret_cast<const float4*>(from)),
                 b = __ldg(reinterpret_cast<const float4*>(from) + 1);
    return {to_bf16_pair(a.x, a.y), to_bf16_pair(a.z, a.w), to_bf16_pair(b.x, b.y),
            to_bf16_pair(b.z, b.w)};
  } else if constexpr (kCache == DType::kF8E4M3) {
    const uint2 bytes = __ldg(reinterpret_cast<const uint2*>(from));
    return {e4m3_to_bf16_pair(bytes.x), e4m3_to_bf16_pair(bytes.x >> 16),
            e4m3_to_bf16_pair(bytes.y), e4m3_to_bf16_pair(bytes.y >> 16)};
  } else {
    const uint4 halves = __ldg(reinterpret_cast<const uint4*>(from));
    const auto pair = [](uint32_t two) {
      return to_bf16_pair(f16_to_float(static_cast<uint16_t>(two)),
                          f16_to_float(static_cast<uint16_t>(two >> 16)));
    };
    return {pair(halves.x), pair(halves.y), pair(halves.z), pair(halves.w)};
  }
}

}  // namespace moracle::cuda
