// How long the first block of tiles takes after a pause without tiles.
//
//   g++ -std=c++20 -O2 -Iinclude -Isrc bench/lab/tile_sleep.cc build/cpu/libmoracle.a … -o
//   tile_sleep
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "kernels/cpu/gemm/lines.h"
#include "moracle/oracle.h"

using namespace moracle;
using namespace moracle::cpu;

namespace {

using Clock = std::chrono::steady_clock;

double nanoseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::nano>(Clock::now() - since).count();
}

// 16 rows, two panels, 256 columns of bf16, all in the first cache.
struct Block {
  alignas(64) std::array<std::byte, 16 * (512 + 64)> x{};
  alignas(64) std::array<std::byte, 2 * 128 * kLineBytes> lines{};
  alignas(64) std::array<float, 2 * 16 * kLineRows> sums{};
  LineBlock block;

  Block() {
    block.x = x.data();
    block.x_stride = 512 + 64;
    block.rows = block.most_rows = 16;
    block.units = 2;
    block.unit_lines = 64;
    block.overwrite = true;
    for (int p = 0; p < 2; ++p) {
      block.lines[p] = lines.data() + p * 128 * kLineBytes;
      block.sum[p] = sums.data() + p * 16 * kLineRows;
    }
  }
};

// Median of the first and of the second block after `pause` ns; `awake`: a product every so many.
void measure(Block& b, double pause, double awake) {
  std::vector<double> times[2];
  for (int turn = 0; turn < 101; ++turn) {
    for (int i = 0; i < 1000; ++i) kAmxLines.bf16(b.block);
    const auto begin = Clock::now();
    for (double next = awake; nanoseconds(begin) < pause;) {
      if (awake == 0 || nanoseconds(begin) < next) continue;
      kAmxLines.keep_awake();
      next += awake;
    }
    for (auto& of : times) {
      const auto start = Clock::now();
      kAmxLines.bf16(b.block);
      of.push_back(nanoseconds(start));
    }
  }
  for (auto& of : times) std::nth_element(of.begin(), of.begin() + 50, of.end());
  std::printf("%7.0f ns%s: %5.0f, then %4.0f ns\n", pause, awake > 0 ? ", kept awake" : "",
              times[0][50], times[1][50]);
}

}  // namespace

int main() {
  if (missing(Isa::kAmxBf16, Machine::here().cpu.isa) != Isa::kNone) {
    std::puts("this CPU has no AMX");
    return 1;
  }
  auto block = std::make_unique<Block>();
  kAmxLines.begin();
  for (double pause : {100.0, 200.0, 300.0, 1000.0, 5000.0, 100000.0}) {
    measure(*block, pause, 0);
    measure(*block, pause, 90);
  }
  kAmxLines.end();
  return 0;
}
