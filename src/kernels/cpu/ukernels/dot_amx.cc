// AMX tiles: one product multiplies up to 16 rows of activations by 16 row blocks. A product that
// accumulates into the previous product's sums waits three times as long as one product takes. So
// keep four sums in flight: two halves of the rows times two panels, or, for up to 16 rows, two
// ranges of columns.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot.h"

namespace moracle::cpu {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

thread_local int configured_first = 0, configured_second = 0, configured_depth = 0;

// Tile numbers are part of the instruction, so they must be literals.
#define MORACLE_TILE_PRODUCTS(product)       \
  MORACLE_VECTOR_INLINE static void add0() { \
    product(0, 4, 6);                        \
  }                                          \
  MORACLE_VECTOR_INLINE static void add1() { \
    product(1, 4, 7);                        \
  }                                          \
  MORACLE_VECTOR_INLINE static void add2() { \
    product(2, 5, 6);                        \
  }                                          \
  MORACLE_VECTOR_INLINE static void add3() { \
    product(3, 5, 7);                        \
  }

/// Both panels (or one) of the first or the second half.
#define MORACLE_TILE_ADD                          \
  template <bool kTwoPanels, bool kSecond>        \
  MORACLE_VECTOR_INLINE static void add() {       \
    if constexpr (kSecond)                        \
      add2();                                     \
    else                                          \
      add0();                                     \
    if constexpr (kTwoPanels && kSecond) add3();  \
    if constexpr (kTwoPanels && !kSecond) add1(); \
  }

struct Int8Tiles {
  static constexpr bool kExact = true;  // sums may be split anywhere
  MORACLE_TILE_PRODUCTS(_tile_dpbssd)
  MORACLE_TILE_ADD
  MORACLE_VECTOR_INLINE static __m512 value(const std::byte* sum) {
    return _mm512_cvtepi32_ps(_mm512_load_si512(sum));
  }
  MORACLE_VECTOR_INLINE static __m512 without(const std::byte* sum, __m512i zero, int32_t x_sum) {
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_load_si512(sum),
                                               _mm512_mullo_epi32(zero, _mm512_set1_epi32(x_sum))));
  }
  MORACLE_VECTOR_INLINE static void add_tile(std::byte* to, const std::byte* from, int rows) {
    for (int r = 0; r < rows; ++r) {
      const int64_t at = r * kRowBlockBytes;
      _mm512_store_si512(
          to + at, _mm512_add_epi32(_mm512_load_si512(to + at), _mm512_load_si512(from + at)));
    }
  }
};

struct Bf16Tiles {
  static constexpr bool kExact = false;
  MORACLE_TILE_PRODUCTS(_tile_dpbf16ps)
  MORACLE_TILE_ADD
  MORACLE_VECTOR_INLINE static __m512 value(const std::byte* sum) { return _mm512_load_ps(sum); }
};

// Adds the sums of one segment to b.sum, scaled as in add_scaled. Loop invariants are hoisted by
// hand: the compiler cannot prove that no store changes them.
template <class Tiles>
MORACLE_VECTOR_INLINE void add_sums(const std::byte* sums, const DotArgs& b, int first, int panel,
                                    int segment) {
  const int count = b.rows - first < 16 ? b.rows - first : 16;
  float* const to = b.sum[panel] + first * kPanelRows;
  const __m512 scale = segment_scale(b, panel, segment, 0);
  const bool begins = b.overwrite && segment == 0;
  if (b.x_scale == nullptr && b.w_zero[panel] == nullptr) {
    for (int r = 0; r < count; ++r) {
      const __m512 value = Tiles::value(sums + r * kRowBlockBytes);
      float* const at = to + r * kPanelRows;
      _mm512_storeu_ps(at, begins ? _mm512_mul_ps(value, scale)
                                  : _mm512_fmadd_ps(value, scale, _mm512_loadu_ps(at)));
    }
    return;
  }
  const float one = 1;
  const bool scaled = b.x_scale != nullptr;
  const float* const x_scale =
      scaled ? b.x_scale + first * b.x_scale_stride + segment * b.x_scale_step : &one;
  const int64_t stride = scaled ? b.x_scale_stride : 0;
  const bool zeros = b.w_zero[panel] != nullptr;
  const int32_t* const x_sum = zeros ? b.x_sum + first * b.x_sum_stride + segment : nullptr;
  const int64_t sum_stride = b.x_sum_stride;
  __m512i zero = _mm512_setzero_si512();
  if (zeros) {
    zero = _mm512_cvtepi8_epi32(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(b.w_zero[panel] + segment * kPanelRows)));
  }
  for (int r = 0; r < count; ++r) {
    __m512 value;
    if constexpr (Tiles::kExact) {
      value = zeros ? Tiles::without(sums + r * kRowBlockBytes, zero, x_sum[r * sum_stride])
                    : Tiles::value(sums + r * kRowBlockBytes);
    } else {
      value = Tiles::value(sums + r * kRowBlockBytes);
    }
    value = _mm512_mul_ps(value, _mm512_set1_ps(x_scale[r * stride]));
    float* const at = to + r * kPanelRows;
    const __m512 before = begins ? _mm512_setzero_ps() : _mm512_loadu_ps(at);
    _mm512_storeu_ps(at, _mm512_fmadd_ps(value, scale, before));
  }
}

// Issues a quarter of a step's prefetches between two products, so that loads overlap products.
template <bool kTwoPanels>
MORACLE_VECTOR_INLINE void prefetch_quarter(const DotArgs& b, int64_t i, int quarter, int depth) {
  if (b.prefetch_every == 0) return;
  const int count = depth / b.prefetch_every;
  const int64_t at = i / b.prefetch_every;
  for (int l = count * quarter / 4; l < count * (quarter + 1) / 4; ++l) {
    prefetch_line(b.prefetch[0] + (at + l) * kRowBlockBytes);
    if constexpr (kTwoPanels) prefetch_line(b.prefetch[1] + (at + l) * kRowBlockBytes);
  }
}

// ---- two halves ----

// The products of one half of the rows: with each value, or with both of its terms.
template <class Tiles, bool kTwoPanels, bool kTwoTerms, bool kSecond>
MORACLE_VECTOR_INLINE void half_of(const DotArgs& b, const std::byte* x, int64_t i, int depth) {
  if constexpr (kSecond)
    _tile_loadd(5, x, b.x_stride);
  else
    _tile_loadd(4, x, b.x_stride);
  for (int quarter = kSecond ? 2 : 0; quarter < (kSecond ? 4 : 2); ++quarter)
    prefetch_quarter<kTwoPanels>(b, i, quarter, depth);
  Tiles::template add<kTwoPanels, kSecond>();
  if constexpr (kTwoTerms) {
    if constexpr (kSecond)
      _tile_loadd(5, x + b.x_low, b.x_stride);
    else
      _tile_loadd(4, x + b.x_low, b.x_stride);
    Tiles::template add<kTwoPanels, kSecond>();
  }
}

template <class Tiles, bool kTwoPanels, bool kTwoTerms>
MORACLE_VECTOR_INLINE void segment_of_halves(const DotArgs& b, int segment, int depth) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const int64_t begin = segment * b.segment_blocks;
  for (int64_t i = begin; i < begin + b.segment_blocks; i += depth) {
    _tile_loadd(6, b.w[0] + i * kRowBlockBytes, kRowBlockBytes);
    if constexpr (kTwoPanels) _tile_loadd(7, b.w[1] + i * kRowBlockBytes, kRowBlockBytes);
    const std::byte* const x = b.x + i * 4;
    half_of<Tiles, kTwoPanels, kTwoTerms, false>(b, x, i, depth);
    half_of<Tiles, kTwoPanels, kTwoTerms, true>(b, x + 16 * b.x_stride, i, depth);
  }
  alignas(64) std::byte sums[16 * kRowBlockBytes];
  _tile_stored(0, sums, kRowBlockBytes);
  add_sums<Tiles>(sums, b, 0, 0, segment);
  _tile_stored(2, sums, kRowBlockBytes);
  add_sums<Tiles>(sums, b, 16, 0, segment);
  if constexpr (kTwoPanels) {
    _tile_stored(1, sums, kRowBlockBytes);
    add_sums<Tiles>(sums, b, 0, 1, segment);
    _tile_stored(3, sums, kRowBlockBytes);
    add_sums<Tiles>(sums, b, 16, 1, segment);
  }
}

// ---- up to 16 rows ----

// The row blocks of one product from row block `i` on, into the first or the second pair of sums.
template <class Tiles, bool kTwoPanels, bool kTwoTerms, bool kSecond>
MORACLE_VECTOR_INLINE void step(const DotArgs& b, int64_t i, int depth) {
  _tile_loadd(6, b.w[0] + i * kRowBlockBytes, kRowBlockBytes);
  if constexpr (kTwoPanels) _tile_loadd(7, b.w[1] + i * kRowBlockBytes, kRowBlockBytes);
  // half_of prefetches the other two quarters.
  for (int quarter = kSecond ? 0 : 2; quarter < (kSecond ? 2 : 4); ++quarter)
    prefetch_quarter<kTwoPanels>(b, i, quarter, depth);
  half_of<Tiles, kTwoPanels, kTwoTerms, kSecond>(b, b.x + i * 4, i, depth);
}

// Row blocks [first, first_end), interleaved with as many or fewer row blocks [second, second_end).
template <class Tiles, bool kTwoPanels, bool kTwoTerms>
MORACLE_VECTOR_INLINE void two_ranges(const DotArgs& b, int64_t first, int64_t first_end,
                                      int64_t second, int64_t second_end, int depth) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (; second < second_end; first += depth, second += depth) {
    step<Tiles, kTwoPanels, kTwoTerms, false>(b, first, depth);
    step<Tiles, kTwoPanels, kTwoTerms, true>(b, second, depth);
  }
  for (; first < first_end; first += depth)
    step<Tiles, kTwoPanels, kTwoTerms, false>(b, first, depth);
}

template <class Tiles, bool kTwoPanels, bool kTwoTerms>
MORACLE_VECTOR_INLINE void skinny_rows(const DotArgs& b, int depth) {
  alignas(64) std::byte sums[2][16 * kRowBlockBytes];
  const int64_t row_blocks = b.segment_blocks;
  for (int segment = 0; segment < b.segments; segment += 2) {
    const int64_t begin = segment * row_blocks, end = begin + row_blocks;
    const bool two = segment + 1 < b.segments;
    // Split a last single segment into two halves, where the order of summation does not matter.
    const int64_t half = Tiles::kExact && !two ? begin + (row_blocks / depth + 1) / 2 * depth : end;
    two_ranges<Tiles, kTwoPanels, kTwoTerms>(b, begin, half, half, two ? end + row_blocks : end,
                                             depth);
    for (int p = 0; p < (kTwoPanels ? 2 : 1); ++p) {
      if (p == 0) {
        _tile_stored(0, sums[0], kRowBlockBytes);
        _tile_stored(2, sums[1], kRowBlockBytes);
      } else {
        _tile_stored(1, sums[0], kRowBlockBytes);
        _tile_stored(3, sums[1], kRowBlockBytes);
      }
      if constexpr (Tiles::kExact) {
        if (!two) Tiles::add_tile(sums[0], sums[1], b.rows);
      }
      add_sums<Tiles>(sums[0], b, 0, p, segment);
      if (two) add_sums<Tiles>(sums[1], b, 0, p, segment + 1);
    }
  }
}

template <class Tiles, bool kTwoPanels, bool kTwoTerms>
void block_of_tiles(const DotArgs& b) {
  const int depth = b.segment_blocks % 16 == 0 ? 16 : 8;
  // Use whole tiles if any block needs them: reconfiguring tiles costs more than computing padding
  // rows.
  const int rows = b.most_rows > 16 || b.rows > 16 ? 16 : b.rows;
  configure_tiles(rows, rows, depth);
  if (b.rows <= 16) return skinny_rows<Tiles, kTwoPanels, kTwoTerms>(b, depth);
  for (int segment = 0; segment < b.segments; ++segment)
    segment_of_halves<Tiles, kTwoPanels, kTwoTerms>(b, segment, depth);
}

template <class Tiles, bool kTwoTerms>
void multiply_tiles(const DotArgs& b) {
  b.panels == 2 ? block_of_tiles<Tiles, true, kTwoTerms>(b)
                : block_of_tiles<Tiles, false, kTwoTerms>(b);
}

}  // namespace

void dot_x_i8_w_i8_r32_amx(const DotArgs& b) {
  multiply_tiles<Int8Tiles, false>(b);
}
void dot_x_bf16_w_bf16_r32_amx(const DotArgs& b) {
  b.x_low > 0 ? multiply_tiles<Bf16Tiles, true>(b) : multiply_tiles<Bf16Tiles, false>(b);
}

void configure_tiles(int first, int second, int depth) {
  if (first == configured_first && second == configured_second && depth == configured_depth) return;
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    const bool is_second = t == 2 || t == 3 || t == 5, is_x = t == 4 || t == 5;
    config.row_bytes[t] = static_cast<uint16_t>(is_x ? 4 * depth : 64);
    config.rows[t] = static_cast<uint8_t>(t >= 6 ? depth : is_second ? second : first);
  }
  // With the built-in intrinsic, the compiler may drop the stores to all but the first bytes.
  asm volatile("ldtilecfg %0" ::"m"(config));
  configured_first = first;
  configured_second = second;
  configured_depth = depth;
}

void begin_amx() {
  configured_first = configured_second = configured_depth = 0;
}
void end_amx() {
  _tile_release();
}
// The sum tiles are free between two blocks, so this product may overwrite them.
void keep_amx_awake() {
  if (configured_first != 0) _tile_dpbssd(0, 4, 6);
}

}  // namespace moracle::cpu

#endif
