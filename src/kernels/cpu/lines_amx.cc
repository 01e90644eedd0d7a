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
                                            int panel, int unit) {
    const int32_t x_sum = b.w_zero[panel] == nullptr ? 0 : b.x_sum[row * b.x_sum_stride + unit];
    return _mm512_cvtepi32_ps(without_zero(load_line(sum), b, panel, unit, x_sum));
  }
};

struct Bf16Tiles {
  MORACLE_TILE_PRODUCTS(_tile_dpbf16ps)
  MORACLE_LINES_INLINE static __m512 finish(const std::byte* sum, const LineBlock&, int, int, int) {
    return _mm512_load_ps(sum);
  }
};

template <class Tiles>
MORACLE_LINES_INLINE void add_sums(const std::byte* sums, const LineBlock& b, int first, int panel,
                                   int unit) {
  const int count = b.rows - first < 16 ? b.rows - first : 16;
  for (int r = 0; r < count; ++r) {
    add_scaled(Tiles::finish(sums + r * kLineBytes, b, first + r, panel, unit), b, first + r, panel,
               unit);
  }
}

// A quarter of what one step asks for: between two products, so that tiles come in meanwhile.
template <bool kTwoPanels>
MORACLE_LINES_INLINE void prefetch_quarter(const LineBlock& b, int64_t i, int quarter) {
  if (b.prefetch_every == 0) return;
  const int count = 16 / b.prefetch_every;
  const int64_t at = i / b.prefetch_every;
  for (int l = count * quarter / 4; l < count * (quarter + 1) / 4; ++l) {
    prefetch_line(b.prefetch[0] + (at + l) * kLineBytes);
    if constexpr (kTwoPanels) prefetch_line(b.prefetch[1] + (at + l) * kLineBytes);
  }
}

// The 16 lines from line i on.
template <class Tiles, bool kTwoHalves, bool kTwoPanels>
MORACLE_LINES_INLINE void step(const LineBlock& b, int64_t i) {
  _tile_loadd(6, b.lines[0] + i * kLineBytes, kLineBytes);
  prefetch_quarter<kTwoPanels>(b, i, 0);
  _tile_loadd(4, b.x + i * 4, b.x_stride);
  Tiles::add0();
  prefetch_quarter<kTwoPanels>(b, i, 1);
  if constexpr (kTwoPanels) {
    _tile_loadd(7, b.lines[1] + i * kLineBytes, kLineBytes);
    Tiles::add1();
  }
  prefetch_quarter<kTwoPanels>(b, i, 2);
  if constexpr (kTwoHalves) {
    _tile_loadd(5, b.x + 16 * b.x_stride + i * 4, b.x_stride);
    Tiles::add2();
  }
  prefetch_quarter<kTwoPanels>(b, i, 3);
  if constexpr (kTwoHalves && kTwoPanels) Tiles::add3();
}

template <class Tiles, bool kTwoHalves, bool kTwoPanels>
MORACLE_LINES_INLINE void unit_of_tiles(const LineBlock& b, int unit) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const int64_t begin = unit * b.unit_lines;
  for (int64_t i = begin; i < begin + b.unit_lines; i += 16)
    step<Tiles, kTwoHalves, kTwoPanels>(b, i);
  alignas(64) std::byte sums[16 * kLineBytes];
  _tile_stored(0, sums, kLineBytes);
  add_sums<Tiles>(sums, b, 0, 0, unit);
  if constexpr (kTwoPanels) {
    _tile_stored(1, sums, kLineBytes);
    add_sums<Tiles>(sums, b, 0, 1, unit);
  }
  if constexpr (kTwoHalves) {
    _tile_stored(2, sums, kLineBytes);
    add_sums<Tiles>(sums, b, 16, 0, unit);
  }
  if constexpr (kTwoHalves && kTwoPanels) {
    _tile_stored(3, sums, kLineBytes);
    add_sums<Tiles>(sums, b, 16, 1, unit);
  }
}

template <class Tiles, bool kTwoHalves, bool kTwoPanels>
void block_of_tiles(const LineBlock& b) {
  for (int unit = 0; unit < b.units; ++unit) unit_of_tiles<Tiles, kTwoHalves, kTwoPanels>(b, unit);
}

template <class Tiles>
void multiply_tiles(const LineBlock& b) {
  const bool halves = b.rows > 16;
  if (b.panels == 2)
    halves ? block_of_tiles<Tiles, true, true>(b) : block_of_tiles<Tiles, false, true>(b);
  else
    halves ? block_of_tiles<Tiles, true, false>(b) : block_of_tiles<Tiles, false, false>(b);
}

// Integer sums are exact either way, and a few rows do not fill a tile.
void multiply_int8(const LineBlock& b) {
  b.rows <= 4 ? multiply<Int8Dot>(b) : multiply_tiles<Int8Tiles>(b);
}

void end() {
  _tile_release();
}

}  // namespace

const LineKernels kAmxLines = {.instructions = {"amx_int8", "amx_bf16", nullptr},
                               .begin = begin,
                               .end = end,
                               .row_block = 32,
                               .int8 = multiply_int8,
                               .bf16 = multiply_tiles<Bf16Tiles>,
                               .finish = finish_rows};

}  // namespace moracle::cpu
