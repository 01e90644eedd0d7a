// The epilogue of a GEMM: minimums of groups, scales, bias, and the weighted sum of a token's rows.
// Scales and minimums that a panel stores as integers, exponents or f16.
#pragma once

#include "kernels/cpu/simd/vector.h"
#include "kernels/cpu/simd/vector_blocks.h"
#include "kernels/cpu/simd/vector_convert.h"
#include "kernels/cpu/simd/vector_ops.h"

namespace moracle::cpu {
namespace {

void store_rows(const StoreArgs& args) {
  const StoreArgs f = args;  // a local copy: no store below can alias it
  constexpr int kColumns = 16;
  for (int at = 0; at < f.columns; at += kLanes) {
    const int columns = f.columns - at;
    const bool whole = columns >= kLanes;
    const Vec scale = f.w_scale == nullptr ? splat(1) : load(f.w_scale + at);
    const Vec bias = f.bias == nullptr ? Vec{} : load(f.bias + at);
    for (int r = 0; r < f.rows; ++r) {
      Vec v = load(f.sum + r * kColumns + at);
      if (f.x_scale != nullptr) v = v * splat(f.x_scale[r * f.x_scale_stride]);
      if (f.w_scale != nullptr) v = v * scale;
      if (f.bias != nullptr) v = v + bias;
      float* const to = f.to + (f.to_row == nullptr ? r : f.to_row[r]) * f.to_stride + at;
      if (f.add) {
        const Vec weight = splat(f.weight == nullptr ? 1.0f : f.weight[r]);
        v = multiply_add(weight, v, whole ? load(to) : load_first(to, columns));
      }
      whole ? store(to, v) : store_first(to, v, columns);
    }
  }
}

// Several chains of additions hide their latency. Every row adds in the same order, so its bits do
// not depend on the other rows.
constexpr int kPanelVectors = 16 / kLanes;
constexpr int kMinimumChains = kPanelVectors == 1 ? 4 : 2;
constexpr int kMinimumRows = 4 / kPanelVectors;

template <int kRows>
MORACLE_VECTOR_INLINE void subtract_from(const MinimumArgs& args, int first) {
  const float* minimum = args.minimum;
  const float* x_sum = args.x_sum + first * args.x_sum_stride;
  Vec partial[kRows][kPanelVectors][kMinimumChains] = {};
  const auto add_group = [&](int chain) {
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kPanelVectors; ++v) {
      const Vec m = load(minimum + v * kLanes);
      MORACLE_VECTOR_UNROLL
      for (int r = 0; r < kRows; ++r)
        partial[r][v][chain] =
            multiply_add(m, splat(x_sum[r * args.x_sum_stride]), partial[r][v][chain]);
    }
    minimum += 16;
    ++x_sum;
  };
  int64_t g = 0;
  for (; g + kMinimumChains <= args.groups; g += kMinimumChains) {
    MORACLE_VECTOR_UNROLL
    for (int chain = 0; chain < kMinimumChains; ++chain) add_group(chain);
  }
  for (; g < args.groups; ++g) add_group(0);
  MORACLE_VECTOR_UNROLL
  for (int v = 0; v < kPanelVectors; ++v) {
    const Vec scale = args.scale == nullptr ? splat(1) : load(args.scale + v * kLanes);
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      Vec all = partial[r][v][0] + partial[r][v][1];
      if constexpr (kMinimumChains == 4) all += partial[r][v][2] + partial[r][v][3];
      float* const at = args.sum + (first + r) * 16 + v * kLanes;
      store(at, multiply_add(load(at), scale, -all));
    }
  }
}

void subtract_minimums(const MinimumArgs& args) {
  int r = 0;
  for (; r + kMinimumRows <= args.rows; r += kMinimumRows) subtract_from<kMinimumRows>(args, r);
  for (; r < args.rows; ++r) subtract_from<1>(args, r);
}

/// 16 scales in f16. They are finite, so the CPU's own conversion gives their values.
MORACLE_VECTOR_INLINE FloatBlock load_scales(const uint16_t* p) {
#if defined(MORACLE_VECTOR_AVX512)
  return {{as<Vec>(_mm512_cvtph_ps(load_as<__m256i>(p)))}};
#elif defined(MORACLE_VECTOR_AVX2)
  return {{as<Vec>(_mm256_cvtph_ps(load_as<__m128i>(p))),
           as<Vec>(_mm256_cvtph_ps(load_as<__m128i>(p + kLanes)))}};
#else
  alignas(64) float floats[kBlock];
  from_f16(p, kBlock, floats);
  return load_block(floats);
#endif
}

void widen_scales(const uint16_t* scales, int64_t groups, float* to) {
  for (int64_t g = 0; g < groups; ++g)
    store_block(to + g * kBlock, load_scales(scales + g * kBlock));
}

void powers_of_two(const uint8_t* exponents, int64_t count, bool half, float* to) {
  for (int64_t i = 0; i < count; i += kBlock) {
    const Block e = load_block(exponents + i);
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const Ints power = larger(as<Ints>(e.v[v]) - (half ? 1 : 0), Ints{}) << 23;
      store(to + i + v * kLanes,
            select(as<Ints>(e.v[v]) == 255, splat_bits(0x7fc00000u), as<Bits>(power)));
    }
  }
}

void scale_steps(const StepArgs& args) {
  FloatBlock factor = load_scales(args.factor);
  MORACLE_VECTOR_UNROLL
  for (int v = 0; v < kVecs; ++v) factor.v[v] = factor.v[v] * splat(args.unit);
  for (int64_t g = 0; g < args.groups; ++g) {
    const Block steps = load_block(reinterpret_cast<const uint8_t*>(args.steps + g * 16));
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      Vec to = to_float(as<Ints>(steps.v[v] << 24) >> 24) * factor.v[v];
      if (args.plus != nullptr)
        to = multiply_add(load(args.plus + g * 16 + v * kLanes), splat(args.times), to);
      store(args.to + g * 16 + v * kLanes, to);
    }
  }
}

}  // namespace
}  // namespace moracle::cpu
