#include "kernels/cpu/limits/limits.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "base/median.h"
#include "base/try.h"
#include "kernels/cpu/limits/limit_loops.h"
#include "oracle/rates/multiply_loops.h"

namespace moracle::cpu {
namespace {

constexpr size_t kChunkBytes = 1 << 12;  // unit in which threads share the buffer
// Minimum bytes per run: below it, waking the threads would dominate.
constexpr size_t kLeastRead = 64 << 20;

template <class Work>
double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Loop {
  std::string_view name;
  Arithmetic arithmetic;
  Isa isa;
  void (*run)(int64_t rounds);
  double ops_per_round;
};

#if defined(__x86_64__)
constexpr double kTile = 2.0 * kTileMultiplies * 16 * 16;
constexpr Loop kLoops[] = {
    {"f32 avx2", Arithmetic::kF32, Isa::kAvx2, multiply_f32_avx2, 2.0 * kMultiplies * 8},
    {"int8 avx2", Arithmetic::kInt8, Isa::kAvx2, multiply_int8_avx2, 2.0 * kMultiplies * 16},
    {"int8 avx2_maddubs", Arithmetic::kInt8, Isa::kAvx2, multiply_bytes_avx2,
     2.0 * kMultiplies * 32},
    {"int16 avx2_madd", Arithmetic::kInt8, Isa::kAvx2, multiply_int8_avx2, 2.0 * kMultiplies * 16},
    {"int16 avx_vnni_words", Arithmetic::kInt8, Isa::kAvxVnni, multiply_words_avx_vnni,
     2.0 * kMultiplies * 16},
    {"int8 avx_vnni", Arithmetic::kInt8, Isa::kAvxVnni, multiply_int8_avx_vnni,
     2.0 * kMultiplies * 32},
    {"f32 avx512", Arithmetic::kF32, Isa::kAvx512, multiply_f32_avx512, 2.0 * kMultiplies * 16},
    {"int8 avx512_vnni", Arithmetic::kInt8, Isa::kAvx512Vnni, multiply_int8_avx512_vnni,
     2.0 * kMultiplies * 64},
    {"bf16 avx512_bf16", Arithmetic::kBf16, Isa::kAvx512Bf16, multiply_bf16_avx512,
     2.0 * kMultiplies * 32},
    {"int8 amx_int8", Arithmetic::kInt8, Isa::kAmxInt8, multiply_int8_amx, kTile * 64},
    {"bf16 amx_bf16", Arithmetic::kBf16, Isa::kAmxBf16, multiply_bf16_amx, kTile * 32},
};

bool usable(const Loop& loop, Isa isa) {
  if (missing(loop.isa, isa) != Isa::kNone) return false;
  const bool tiles = (loop.isa & (Isa::kAmxInt8 | Isa::kAmxBf16)) != Isa::kNone;
  return !tiles || allow_tiles();
}
#else
constexpr std::array<Loop, 0> kLoops;
bool usable(const Loop&, Isa) {
  return false;
}
#endif

using Read = void (*)(const void* from, size_t bytes);
Read widest_read() {
#if defined(__x86_64__)
  static const Isa isa = Machine::here().cpu.isa;
  if (missing(Isa::kAvx512, isa) == Isa::kNone) return read_avx512;
  if (missing(Isa::kAvx2, isa) == Isa::kNone) return read_avx2;
#endif
  return read_portable;
}

double peak_of(const Loop& loop, ThreadPool& pool, int num_runs) {
  auto seconds = [&](int64_t rounds) {
    return seconds_of([&] { pool.run([&](int) { loop.run(rounds); }); });
  };
  int64_t rounds = 1 << 10;
  while (seconds(rounds) < 4e-3) rounds *= 2;
  rounds *= 4;
  std::vector<double> runs;
  for (int i = 0; i < num_runs; ++i) runs.push_back(seconds(rounds));
  return loop.ops_per_round * static_cast<double>(rounds) * pool.size() / median(runs);
}

size_t buffer_size() {
  constexpr size_t kLeast = size_t{1} << 30;
  const long cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  const auto quarter = static_cast<size_t>(Machine::here().cpu.memory_bytes / 4);
  return std::min(std::max(kLeast, cache > 0 ? 4 * static_cast<size_t>(cache) : 0), quarter);
}

}  // namespace

Result<LimitsProbe> LimitsProbe::make(int threads, size_t buffer_bytes, const Progress& progress) {
  const size_t wanted = buffer_bytes > 0 ? buffer_bytes : buffer_size();
  const size_t bytes = std::max(wanted / (4 * kChunkBytes), size_t{1}) * 4 * kChunkBytes;
  // Allocate as for the layers' weights: on huge pages if possible.
  MORACLE_TRY(const std::shared_ptr<Device> device, open_device("cpu", 1));
  MORACLE_TRY(Buffer buffer, device->allocate(bytes));
  auto pool = std::make_unique<ThreadPool>(threads);
  MORACLE_CHECK(pool->started());
  LimitsProbe probe(std::move(pool), std::move(buffer));
  // Write to the buffer: otherwise every page would map to the one zero page.
  constexpr size_t kAtOnce = size_t{256} << 20;
  for (size_t at = 0; at < bytes; at += kAtOnce) {
    MORACLE_CHECK(go_on_measuring(progress));
    std::byte* const base = probe.buffer_.as<std::byte>() + at;
    const auto chunks = static_cast<int64_t>(std::min(kAtOnce, bytes - at) / kChunkBytes);
    probe.pool_->split(chunks, [&](int64_t first, int64_t end) {
      std::memset(base + first * kChunkBytes, 1, (end - first) * kChunkBytes);
    });
  }
  return probe;
}

double LimitsProbe::seconds_of_reading(size_t first, size_t bytes, size_t times) {
  const Read read = widest_read();
  const std::byte* const from = buffer_.as<std::byte>() + first;
  return seconds_of([&] {
    pool_->split(static_cast<int64_t>(bytes / kChunkBytes), [&](int64_t begin, int64_t end) {
      for (size_t i = 0; i < times; ++i)
        read(from + begin * kChunkBytes, (end - begin) * kChunkBytes);
    });
  });
}

int64_t LimitsProbe::memory_bytes() const {
  return Machine::here().cpu.memory_bytes;
}

double LimitsProbe::reading() {
  const size_t quarter = buffer_.bytes() / 4, times = (kLeastRead + quarter - 1) / quarter;
  std::vector<double> runs;
  for (int i = 0; i < 3; ++i) {
    runs.push_back(seconds_of_reading(next_, quarter, times));
    next_ = (next_ + quarter) % buffer_.bytes();
  }
  return static_cast<double>(quarter * times) / median(runs);
}

Result<double> LimitsProbe::ops_per_second(std::string_view peak) {
  for (const Loop& loop : kLoops) {
    if (loop.name == peak) return peak_of(loop, *pool_, 3);
  }
  return 0.0;
}

Result<Limits> LimitsProbe::measure(const Progress& progress) {
  Limits limits;
  limits.threads = threads();
  limits.buffer_bytes = static_cast<int64_t>(buffer_.bytes());
  std::vector<double> reads;
  for (int i = 0; i < 5; ++i) {
    MORACLE_CHECK(go_on_measuring(progress));
    reads.push_back(reading());
  }
  limits.read_bytes_per_second = median(reads);
  const Isa isa = Machine::here().cpu.isa;
  for (const Loop& loop : kLoops) {
    if (!usable(loop, isa)) continue;
    MORACLE_CHECK(go_on_measuring(progress));
    limits.peaks.push_back({loop.name, loop.name.substr(loop.name.find(' ') + 1), loop.arithmetic,
                            peak_of(loop, *pool_, 5)});
  }
  return limits;
}

}  // namespace moracle::cpu
