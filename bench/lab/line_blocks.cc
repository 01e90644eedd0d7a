// One block of rows times two panels, near (in the second cache) and far (in memory).
//
//   g++ -std=c++20 -O2 -Iinclude -Isrc bench/lab/line_blocks.cc build/cpu/libmoracle.a … -o
//   line_blocks
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "kernels/cpu/ukernels/ukernels.h"
#include "moracle/oracle.h"

using namespace moracle;
using namespace moracle::cpu;

namespace {

constexpr int64_t kCols = 2048, kPanelBytes = kCols * kPanelRows, kPairs = 1000, kTurns = 3000;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds for kTurns products of `rows` rows with a pair of panels, over `pairs` pairs round-robin.
double once(const std::byte* x, const std::byte* panels, int rows, int64_t pairs, int every) {
  static float sums[2][64 * kPanelRows];
  DotArgs b;
  b.x_stride = kCols + kRowBlockBytes;
  b.segment_blocks = kCols / 4;
  b.overwrite = true;
  b.rows = 32;
  const double begin = seconds();
  for (int64_t turn = 0; turn < kTurns; ++turn) {
    const std::byte* const now = panels + turn % pairs * 2 * kPanelBytes;
    const std::byte* const next = panels + (turn + 1) % pairs * 2 * kPanelBytes;
    for (int row = 0; row < rows; row += 32) {
      b.x = x + row * b.x_stride;
      b.prefetch_every = every;
      for (int p = 0; p < 2; ++p) {
        b.w[p] = now + p * kPanelBytes;
        b.sum[p] = sums[p] + row * kPanelRows;
        if (every > 0) b.prefetch[p] = next + p * kPanelBytes + row / 32 * (kPanelBytes / every);
      }
      kAmxLines.int8(b);
    }
  }
  return seconds() - begin;
}

}  // namespace

int main() {
  if (missing(Isa::kAmxInt8, Machine::here().cpu.isa) != Isa::kNone) {
    std::puts("this CPU has no AMX");
    return 1;
  }
  const size_t bytes = (kPairs * 2 * kPanelBytes) + (1 << 20);
  auto* memory = static_cast<std::byte*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED) return 1;
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  kAmxLines.begin();
  for (int rows : {32, 64}) {
    for (int64_t pairs : {int64_t{4}, kPairs}) {
      for (int every : {0, rows / 32}) {
        double best = 1e9;
        for (int i = 0; i < 5; ++i)
          best = std::min(best, once(memory, memory + (1 << 20), rows, pairs, every));
        const double ops = 2.0 * rows * 2 * kPanelRows * kCols * kTurns;
        std::printf("%d rows, %s, %s: %.2f TOP/s, %.1f GB/s of weights\n", rows,
                    pairs == kPairs ? "far" : "near", every > 0 ? "prefetched" : "not prefetched",
                    ops / best / 1e12, 2e-9 * kPanelBytes * kTurns / best);
      }
    }
  }
  kAmxLines.end();
}
