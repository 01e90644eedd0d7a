// Micro-kernels for any CPU, in the vectors of simd/vector.h: 128 bits on baseline x86-64 and NEON.
// Every kernel has one order of summation for any number of rows.
#include "kernels/cpu/ukernels/unpack.h"

namespace moracle::cpu {
namespace {

constexpr int kMostRows = 4;  // 4 rows x 2 vectors of sums: half of 16 registers

MORACLE_VECTOR_INLINE Ints splat_ints(int32_t x) {
  return x + Ints{};
}

/// The panel's zero points of a segment.
MORACLE_VECTOR_INLINE Ints zero_points(const DotArgs& b, int panel, int segment, int vector) {
  return widen_bytes(b.w_zero[panel] + segment * kPanelRows + vector * kLanes);
}

MORACLE_VECTOR_INLINE void prefetch(const DotArgs& b, int panel, int64_t i) {
  if ((i & (b.prefetch_every - 1)) != 0) return;
  const int64_t block = i / b.prefetch_every;
  const int64_t jump = block >= b.prefetch_switch ? b.prefetch_jump[panel] : 0;
  __builtin_prefetch(b.prefetch[panel] + block * kRowBlockBytes + jump, 0, 2);
}

/// sum += x_scale · w_scale · dot, for one row and one vector of a panel.
MORACLE_VECTOR_INLINE void add_scaled(Vec dot, const DotArgs& b, int row, int panel, int segment,
                                      int vector) {
  float* const sum = b.sum[panel] + row * kPanelRows + vector * kLanes;
  const Vec before = b.overwrite && segment == 0 ? Vec{} : load(sum);
  if (b.x_scale != nullptr)
    dot = dot * splat(b.x_scale[row * b.x_scale_stride + segment * b.x_scale_step]);
  if (b.w_scale[panel] != nullptr)
    dot = dot * load(b.w_scale[panel] + segment * kPanelRows + vector * kLanes);
  store(sum, before + dot);
}

/// Rows of f32 times kVecs vectors of one panel.
template <class Code, bool kZeros, int kRows, int kVecs>
struct F32Dot {
  static void run(const DotArgs& b, int first, int panel, int vector) {
    const std::byte* const blocks = b.w[panel];
    const float* x[kRows];
    for (int r = 0; r < kRows; ++r)
      x[r] = reinterpret_cast<const float*>(b.x + (first + r) * b.x_stride);
    const bool prefetches = b.prefetch_every > 0 && first == 0 && vector == 0;
    for (int segment = 0; segment < b.segments; ++segment) {
      Vec sum[kRows][kVecs] = {};
      Vec zero[kVecs] = {};
      for (int v = 0; kZeros && v < kVecs; ++v)
        zero[v] = to_float(zero_points(b, panel, segment, vector + v));
      for (int64_t i = segment * b.segment_blocks, end = i + b.segment_blocks; i < end; ++i) {
        MORACLE_VECTOR_UNROLL
        for (int c = 0; c < Code::kColumns; ++c) {
          Vec w[kVecs];
          MORACLE_VECTOR_UNROLL
          for (int v = 0; v < kVecs; ++v)
            w[v] = Code::value(load_codes(blocks + i * kRowBlockBytes, vector + v), c, zero[v]);
          MORACLE_VECTOR_UNROLL
          for (int r = 0; r < kRows; ++r) {
            const Vec a = splat(x[r][i * Code::kColumns + c]);
            MORACLE_VECTOR_UNROLL
            for (int v = 0; v < kVecs; ++v) sum[r][v] = multiply_add(a, w[v], sum[r][v]);
          }
        }
        if (prefetches) prefetch(b, panel, i);
      }
      MORACLE_VECTOR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        MORACLE_VECTOR_UNROLL
        for (int v = 0; v < kVecs; ++v)
          add_scaled(sum[r][v] * Code::kScale, b, first + r, panel, segment, vector + v);
      }
    }
  }
};

// ---- int8 ----
//
// words: columns (0, 2) or (1, 3) of each row's four, as two int16 in a dword. `half`: the columns
// of 4-bit codes that lie in the low or in the high halves of the bytes.

using Words = int16_t __attribute__((vector_size(4 * kLanes)));
using WordBits = uint16_t __attribute__((vector_size(4 * kLanes)));

struct I8Words {
  static constexpr int kHalves = 1;
  MORACLE_VECTOR_INLINE static Words words(Bits codes, int, bool odd) {
    return (odd ? as<Words>(codes) : as<Words>(as<WordBits>(codes) << 8)) >> 8;
  }
};
struct I4Words {
  static constexpr int kHalves = 2;
  MORACLE_VECTOR_INLINE static Words words(Bits codes, int half, bool odd) {
    return as<Words>(as<WordBits>(codes) << (12 - 4 * half - (odd ? 8 : 0))) >> 12;
  }
};
/// Twice the values.
struct E2M1Words {
  static constexpr int kHalves = 2;
  MORACLE_VECTOR_INLINE static Words words(Bits codes, int half, bool odd) {
    const WordBits top = as<WordBits>(codes) << (12 - 4 * half - (odd ? 8 : 0));
    const Words sign = as<Words>(top) >> 15, size = as<Words>(top << 1 >> 13);
    return (twice_e2m1(size) ^ sign) - sign;
  }
};

MORACLE_VECTOR_INLINE Ints add_products(Ints sum, Words a, Words b) {
#if defined(__SSE2__) && !defined(MORACLE_VECTOR_AVX2) && !defined(MORACLE_VECTOR_AVX512)
  return sum + as<Ints>(_mm_madd_epi16(as<__m128i>(a), as<__m128i>(b)));
#else
  // Each product is at most 2^14 in size.
  const Ints products = as<Ints>(a * b);
  return sum + (products >> 16) + (as<Ints>(as<Bits>(products) << 16) >> 16);
#endif
}

/// Rows of int8 times kVecs vectors of one panel.
template <class Code, int kRows, int kVecs>
struct Int8Dot {
  // Dwords of activations that are widened at a time.
  static constexpr int64_t kChunk = 128;

  static void run(const DotArgs& b, int first, int panel, int vector) {
    const std::byte* const blocks = b.w[panel];
    const bool prefetches = b.prefetch_every > 0 && first == 0 && vector == 0;
    int32_t even[kRows][kChunk], odd[kRows][kChunk];
    for (int segment = 0; segment < b.segments; ++segment) {
      Ints sum[kRows][kVecs] = {};
      const int64_t end = (segment + 1) * b.segment_blocks;
      for (int64_t at = segment * b.segment_blocks; at < end; at += kChunk / Code::kHalves) {
        const int64_t count = end - at < kChunk / Code::kHalves ? end - at : kChunk / Code::kHalves;
        for (int r = 0; r < kRows; ++r) {
          widen(b.x + (first + r) * b.x_stride + at * Code::kHalves * 4, count * Code::kHalves,
                even[r], odd[r]);
        }
        for (int64_t i = 0; i < count; ++i) {
          MORACLE_VECTOR_UNROLL
          for (int half = 0; half < Code::kHalves; ++half) {
            MORACLE_VECTOR_UNROLL
            for (int v = 0; v < kVecs; ++v) {
              const Bits codes = load_codes(blocks + (at + i) * kRowBlockBytes, vector + v);
              const Words w[] = {Code::words(codes, half, false), Code::words(codes, half, true)};
              MORACLE_VECTOR_UNROLL
              for (int r = 0; r < kRows; ++r) {
                const int64_t x = i * Code::kHalves + half;
                sum[r][v] = add_products(sum[r][v], w[0], as<Words>(splat_ints(even[r][x])));
                sum[r][v] = add_products(sum[r][v], w[1], as<Words>(splat_ints(odd[r][x])));
              }
            }
          }
          if (prefetches) prefetch(b, panel, at + i);
        }
      }
      MORACLE_VECTOR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        MORACLE_VECTOR_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          Ints exact = sum[r][v];
          if (b.w_zero[panel] != nullptr) {
            const int32_t x_sum = b.x_sum[(first + r) * b.x_sum_stride + segment];
            exact -= zero_points(b, panel, segment, vector + v) * x_sum;
          }
          add_scaled(to_float(exact), b, first + r, panel, segment, vector + v);
        }
      }
    }
  }

 private:
  /// Columns (0, 2) and (1, 3) of each dword as words. Reads up to a vector beyond the last one.
  MORACLE_VECTOR_INLINE static void widen(const std::byte* x, int64_t dwords, int32_t* even,
                                          int32_t* odd) {
    for (int64_t i = 0; i < dwords; i += kLanes) {
      const Bits four = load_as<Bits>(x + i * 4);
      store(even + i, I8Words::words(four, 0, false));
      store(odd + i, I8Words::words(four, 0, true));
    }
  }
};

// ---- blocks of rows ----

/// One or two rows multiply a whole panel, more rows half of it: 8 sums at most.
template <template <int, int> class Dot, int kRows>
void panel_of(const DotArgs& b, int first, int panel) {
  constexpr int kVecs = kRows <= 2 ? kVectors : kVectors / 2;
  for (int vector = 0; vector < kVectors; vector += kVecs)
    Dot<kRows, kVecs>::run(b, first, panel, vector);
}

template <template <int, int> class Dot>
void multiply(const DotArgs& b) {
  for (int panel = 0; panel < b.panels; ++panel) {
    for (int first = 0; first < b.rows; first += kMostRows) {
      switch (b.rows - first) {
        case 1:
          panel_of<Dot, 1>(b, first, panel);
          break;
        case 2:
          panel_of<Dot, 2>(b, first, panel);
          break;
        case 3:
          panel_of<Dot, 3>(b, first, panel);
          break;
        default:
          panel_of<Dot, kMostRows>(b, first, panel);
          break;
      }
    }
  }
}

template <class Code, bool kZeros>
struct FloatsBy {
  template <int kRows, int kVecs>
  using Dot = F32Dot<Code, kZeros, kRows, kVecs>;
};
template <class Code>
struct IntegersBy {
  template <int kRows, int kVecs>
  using Dot = Int8Dot<Code, kRows, kVecs>;
};

template <class Code>
void dot_f32(const DotArgs& b) {
  multiply<FloatsBy<Code, false>::template Dot>(b);
}
template <class Code>
void dot_f32_with_zeros(const DotArgs& b) {
  b.w_zero[0] == nullptr ? dot_f32<Code>(b) : multiply<FloatsBy<Code, true>::template Dot>(b);
}
template <class Code>
void dot_int8(const DotArgs& b) {
  multiply<IntegersBy<Code>::template Dot>(b);
}

}  // namespace

void dot_x_i8_w_i4_r32_portable(const DotArgs& b) {
  dot_int8<I4Words>(b);
}
void dot_x_i8_w_i8_r32_portable(const DotArgs& b) {
  dot_int8<I8Words>(b);
}
void dot_x_i8_w_e2m1_r4_portable(const DotArgs& b) {
  dot_int8<E2M1Words>(b);
}
void dot_x_f32_w_bf16_r32_portable(const DotArgs& b) {
  dot_f32<Bf16Code>(b);
}
void dot_x_f32_w_f16_r32_portable(const DotArgs& b) {
  dot_f32<F16Code>(b);
}
void dot_x_f32_w_f32_r32_portable(const DotArgs& b) {
  dot_f32<F32Code>(b);
}
void dot_x_f32_w_i4_r4_portable(const DotArgs& b) {
  dot_f32_with_zeros<IntCode<4>>(b);
}
void dot_x_f32_w_i8_r4_portable(const DotArgs& b) {
  dot_f32_with_zeros<IntCode<8>>(b);
}
void dot_x_f32_w_e4m3_r4_portable(const DotArgs& b) {
  dot_f32<E4M3Code>(b);
}
void dot_x_f32_w_e2m1_r4_portable(const DotArgs& b) {
  dot_f32<E2M1Code>(b);
}

void unpack_e2m1_to_i8_portable(const UnpackBlocksArgs& c) {
  unpack_to_int8<e2m1_bytes>(c);
}
void unpack_i4_to_f32_portable(const UnpackBlocksArgs& c) {
  unpack_to_f32<IntCode<4>>(c);
}
void unpack_i8_to_f32_portable(const UnpackBlocksArgs& c) {
  unpack_to_f32<IntCode<8>>(c);
}
void unpack_e4m3_to_f32_portable(const UnpackBlocksArgs& c) {
  unpack_to_f32<E4M3Code>(c);
}
void unpack_e2m1_to_f32_portable(const UnpackBlocksArgs& c) {
  unpack_to_f32<E2M1Code>(c);
}

}  // namespace moracle::cpu
