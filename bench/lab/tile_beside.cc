// Measures which work hides behind AMX tile products: decoding the next codes, or scaling earlier
// sums.
//
//   g++ -std=c++20 -O2 -mamx-tile -mamx-int8 -mavx512f -mavx512bw bench/lab/tile_beside.cc -o
//   tile_beside
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

namespace {

constexpr int kColumns = 512, kUnit = 128, kSteps = kColumns / 64, kStretches = 4, kPairs = 2000;
constexpr int64_t kStride = 2112;
constexpr int64_t kPanel = kColumns * 16;  // bytes of lines

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

struct Memory {
  alignas(4096) char codes[16 * kPanel];
  alignas(4096) char x[256 * kStride];
  alignas(4096) char lines[2][2 * kPanel];
  alignas(64) float sums[256 * 32];
  alignas(64) char tiles[4][1024];
};

enum class Decode { kNo, kBefore, kBetween };

// Sixteen lines of codes to thirty-two of int8.
[[gnu::noinline]] void decode(const char* codes, char* to) {
  alignas(16) static constexpr int8_t kValues[16] = {0,  1,  2,  3,  4,  5,  6,  7,
                                                     -8, -7, -6, -5, -4, -3, -2, -1};
  const __m512i values =
      _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kValues)));
  const __m512i nibble = _mm512_set1_epi8(15);
  for (int i = 0; i < 16; ++i) {
    const __m512i line = _mm512_load_si512(codes + i * 64);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(line, 4), nibble);
    _mm512_store_si512(to + i * 128, _mm512_shuffle_epi8(values, _mm512_and_si512(line, nibble)));
    _mm512_store_si512(to + i * 128 + 64, _mm512_shuffle_epi8(values, high));
  }
}

void add(const char* tile, float* sums) {
  const __m512 scale = _mm512_set1_ps(0.5f);
  for (int r = 0; r < 16; ++r) {
    const __m512 value = _mm512_cvtepi32_ps(_mm512_load_si512(tile + r * 64));
    _mm512_store_ps(sums + r * 16, _mm512_fmadd_ps(value, scale, _mm512_load_ps(sums + r * 16)));
  }
}

void multiply(Memory& m, const char* lines, char* other, const char* codes, int stretch, int rows,
              Decode when, bool scaled) {
  int piece = 0;
  for (int row = 0; row < rows; row += 32) {
    const char* const x = m.x + row * kStride + stretch * kColumns;
    for (int unit = 0; unit < kColumns / kUnit; ++unit) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int s = unit * 2; s < unit * 2 + 2; ++s) {
        _tile_loadd(6, lines + s * 1024, 64);
        _tile_loadd(7, lines + kPanel + s * 1024, 64);
        _tile_loadd(4, x + s * 64, kStride);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_loadd(5, x + 16 * kStride + s * 64, kStride);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
        if (when != Decode::kBetween || piece == kSteps) continue;
        decode(codes + piece * 1024, other + piece % 2 * kPanel + piece / 2 * 2048);
        ++piece;
      }
      if (!scaled && unit + 1 < kColumns / kUnit) continue;
      _tile_stored(0, m.tiles[0], 64);
      _tile_stored(1, m.tiles[1], 64);
      _tile_stored(2, m.tiles[2], 64);
      _tile_stored(3, m.tiles[3], 64);
      for (int t = 0; scaled && t < 4; ++t) add(m.tiles[t], m.sums + row * 32 + t * 256);
    }
  }
}

// ns for a stretch, the best of seven.
double measure(Memory& m, int rows, Decode when, bool scaled) {
  double best = 1e9;
  for (int turn = 0; turn < 7; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kPairs * kStretches; ++i) {
      char *const lines = m.lines[i % 2], *const other = m.lines[(i + 1) % 2];
      const char* const codes = m.codes + i % 16 * kPanel;
      for (int p = 0; when == Decode::kBefore && p < kSteps; ++p)
        decode(codes + p * 1024, lines + p * 2048);
      multiply(m, lines, other, codes, i % kStretches, rows, when, scaled);
    }
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    best = std::min(best, spent.count() / (kPairs * kStretches));
  }
  return best;
}

}  // namespace

int main() {
  constexpr int kAskForTiles = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kAskForTiles, kTileData) != 0) return std::puts("no AMX here"), 1;
  TileConfig config;
  for (int t = 0; t < 8; ++t) config.row_bytes[t] = 64, config.rows[t] = 16;
  asm volatile("ldtilecfg %0" ::"m"(config));
  const auto memory = std::make_unique<Memory>();
  std::memset(memory.get(), 1, sizeof(Memory));
  for (const int rows : {32, 64, 256}) {
    for (const bool scaled : {false, true}) {
      std::printf("%3d rows%s: tiles %.0f, decoded before %.0f, between %.0f ns\n", rows,
                  scaled ? ", groups scaled" : "", measure(*memory, rows, Decode::kNo, scaled),
                  measure(*memory, rows, Decode::kBefore, scaled),
                  measure(*memory, rows, Decode::kBetween, scaled));
    }
  }
}
