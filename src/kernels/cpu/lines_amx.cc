// Tiles of AMX: 16 rows of activations times 16 lines. Rows past the end of a block are computed on
// whatever lies there, and their results are not used.
#include "kernels/cpu/lines.inc"

namespace moracle::cpu {
namespace {

// Tiles 0 to 3 are sums (row half · 2 + panel), 4 and 5 activations, 6 and 7 weights; every tile
// has 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

void begin() {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.row_bytes[t] = 64;
    config.rows[t] = 16;
  }
  // The compiler's own intrinsic lets it forget the stores to all but the first bytes.
  asm volatile("ldtilecfg %0" ::"m"(config));
}

// The numbers of tiles are part of an instruction: they must stand in the text.
#define MORACLE_TILE_PRODUCTS(product)      \
  MORACLE_LINES_INLINE static void add0() { \
    product(0, 4, 6);                       \
  }                                         \
  MORACLE_LINES_INLINE static void add1() { \
    product(1, 4, 7);                       \
  }                                         \
  MORACLE_LINES_INLINE static void add2() { \
    product(2, 5, 6);                       \
  }                                         \
  MORACLE_LINES_INLINE static void add3() { \
    product(3, 5, 7);                       \
  }

struct Int8Tiles {
  MORACLE_TILE_PRODUCTS(_tile_dpbssd)
  MORACLE_LINES_INLINE static __m512 finish(const std::byte* sum, const LineBlock& b, int row,
                                            int panel) {
    __m512i value = load_line(sum);
    if (b.w_zero[panel] != nullptr) {
      const __m512i zero =
          _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b.w_zero[panel])));
      value = _mm512_sub_epi32(
          value, _mm512_mullo_epi32(zero, _mm512_set1_epi32(b.x_sum[row * b.x_sum_stride])));
    }
    return _mm512_cvtepi32_ps(value);
  }
};

struct Bf16Tiles {
  MORACLE_TILE_PRODUCTS(_tile_dpbf16ps)
  MORACLE_LINES_INLINE static __m512 finish(const std::byte* sum, const LineBlock&, int, int) {
    return _mm512_load_ps(sum);
  }
};

template <class Tiles>
MORACLE_LINES_INLINE void add_sums(const std::byte* sums, const LineBlock& b, int first,
                                   int panel) {
  const int count = b.rows - first < 16 ? b.rows - first : 16;
  for (int r = 0; r < count; ++r)
    add_scaled(Tiles::finish(sums + r * kLineBytes, b, first + r, panel), b, first + r, panel);
}

// The 16 lines from line i on.
template <class Tiles, bool kTwoHalves, bool kTwoPanels>
MORACLE_LINES_INLINE void step(const LineBlock& b, int64_t i) {
  if (b.prefetch_step > 0) {
    for (int p = 0; p < (kTwoPanels ? 2 : 1); ++p) {
      const std::byte* const next = b.prefetch[p] + i * b.prefetch_step * kLineBytes;
      for (int s = 0; s < 16 * b.prefetch_step; ++s) prefetch_line(next + s * kLineBytes);
    }
  }
  _tile_loadd(6, b.lines[0] + i * kLineBytes, kLineBytes);
  _tile_loadd(4, b.x + i * 4, b.x_stride);
  Tiles::add0();
  if constexpr (kTwoPanels) {
    _tile_loadd(7, b.lines[1] + i * kLineBytes, kLineBytes);
    Tiles::add1();
  }
  if constexpr (kTwoHalves) {
    _tile_loadd(5, b.x + 16 * b.x_stride + i * 4, b.x_stride);
    Tiles::add2();
    if constexpr (kTwoPanels) Tiles::add3();
  }
}

template <class Tiles, bool kTwoHalves, bool kTwoPanels>
void block_of_tiles(const LineBlock& b) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < b.num_lines; i += 16) step<Tiles, kTwoHalves, kTwoPanels>(b, i);
  alignas(64) std::byte sums[16 * kLineBytes];
  _tile_stored(0, sums, kLineBytes);
  add_sums<Tiles>(sums, b, 0, 0);
  if constexpr (kTwoPanels) {
    _tile_stored(1, sums, kLineBytes);
    add_sums<Tiles>(sums, b, 0, 1);
  }
  if constexpr (kTwoHalves) {
    _tile_stored(2, sums, kLineBytes);
    add_sums<Tiles>(sums, b, 16, 0);
  }
  if constexpr (kTwoHalves && kTwoPanels) {
    _tile_stored(3, sums, kLineBytes);
    add_sums<Tiles>(sums, b, 16, 1);
  }
}

template <class Tiles>
void multiply_tiles(const LineBlock& b) {
  const bool halves = b.rows > 16;
  if (b.panels == 2)
    halves ? block_of_tiles<Tiles, true, true>(b) : block_of_tiles<Tiles, false, true>(b);
  else
    halves ? block_of_tiles<Tiles, true, false>(b) : block_of_tiles<Tiles, false, false>(b);
}

void end() {
  _tile_release();
}

}  // namespace

const LineKernels kAmxLines = {.isa = "amx",
                               .begin = begin,
                               .end = end,
                               .row_block = 32,
                               .int8 = multiply_tiles<Int8Tiles>,
                               .bf16 = multiply_tiles<Bf16Tiles>,
                               .finish = finish_rows};

}  // namespace moracle::cpu
