// The tile loops alone: rows 1 and 4, over panels that stay in L1 and over a set of panels far
// larger than L2. Beside them what the machine can do, taken in the same run, since shared machines
// vary: reading the same memory with nothing else to do, and multiply-adds on registers only.
//
//   tile_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only=true   (read the
//   medians)
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cpu/gemm/tile.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moracle::cpu {
namespace {

constexpr int64_t kGroup = 32;
constexpr int64_t kStreamK = 2048;
constexpr size_t kStreamBytes = size_t{256} << 20;
/// With four rows of f32 activations, and those of k = 2048 int4 codes too, inside 48 KiB of L1.
constexpr size_t kL1Bytes = size_t{16} << 10;

/// Panel bytes from 0x3c to 0x3f: small normal numbers in every float format (a subnormal costs an
/// f32 multiply-add 150 cycles), and in pages that exist.
const std::vector<uint8_t>& memory() {
  static const std::vector<uint8_t> bytes = [] {
    std::vector<uint8_t> b(kStreamBytes);
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<uint8_t>(0x3c + i * 37 % 61 % 4);
    return b;
  }();
  return bytes;
}

/// Calls tile(rows, panel, k, y) on one panel after the other; bits is the size of a weight.
template <class Call>
void walk(benchmark::State& state, int rows, int bits, bool stream, Call tile) {
  const int64_t k = stream ? kStreamK : static_cast<int64_t>(kL1Bytes) * 8 / (bits * kPanel);
  const size_t bytes = static_cast<size_t>(k * kPanel * bits / 8);
  const size_t panels = stream ? kStreamBytes / bytes : 1;
  alignas(64) float y[kMaxRows * kPanel];
  size_t at = 0;
  for (auto _ : state) {
    tile(memory().data() + at * bytes, k, y);
    benchmark::DoNotOptimize(y);
    benchmark::ClobberMemory();
    if (++at == panels) at = 0;
  }
  const double calls = static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["GFLOP/s"] =
      Counter(calls * 2e-9 * static_cast<double>(rows * k * kPanel), Counter::kIsRate);
  state.counters["GB/s"] = Counter(calls * 1e-9 * static_cast<double>(bytes), Counter::kIsRate);
}

template <class T>
struct Activations {
  std::vector<T> values = std::vector<T>(static_cast<size_t>(kMaxRows * kStreamK), T{1});
  const T* rows[kMaxRows];
  Activations() {
    for (int r = 0; r < kMaxRows; ++r) rows[r] = values.data() + r * kStreamK;
  }
};

void run_all(const TileKernels& t, int rows, bool stream) {
  static const Activations<float> x;
  static const Activations<int8_t> codes;
  static const std::vector<float> scales(static_cast<size_t>(kStreamK / 2 * kPanel), 0.01f);
  const auto add = [&](const char* name, int bits, auto tile) {
    const std::string title = std::string(t.isa) + "/" + name + "/rows:" + std::to_string(rows) +
                              (stream ? "/memory" : "/L1");
    benchmark::RegisterBenchmark(
        title.c_str(), [=](benchmark::State& state) { walk(state, rows, bits, stream, tile); });
  };
  add("f32", 32, [=](const uint8_t* p, int64_t k, float* y) {
    t.f32(x.rows, rows, reinterpret_cast<const float*>(p), k, y);
  });
  add("bf16", 16, [=](const uint8_t* p, int64_t k, float* y) {
    t.bf16(x.rows, rows, reinterpret_cast<const uint16_t*>(p), k, y);
  });
  add("f16", 16, [=](const uint8_t* p, int64_t k, float* y) {
    t.f16(x.rows, rows, reinterpret_cast<const uint16_t*>(p), k, y);
  });
  add("int8_group32", 8, [=](const uint8_t* p, int64_t k, float* y) {
    t.int8(x.rows, rows, reinterpret_cast<const int8_t*>(p), scales.data(), k, kGroup, y);
  });
  add("int8_channel", 8, [=](const uint8_t* p, int64_t k, float* y) {
    t.int8(x.rows, rows, reinterpret_cast<const int8_t*>(p), scales.data(), k, k, y);
  });
  add("int4_group32", 4, [=](const uint8_t* p, int64_t k, float* y) {
    t.int4(x.rows, rows, p, scales.data(), k, kGroup, y);
  });
  add("int4_channel", 4, [=](const uint8_t* p, int64_t k, float* y) {
    t.int4(x.rows, rows, p, scales.data(), k, k, y);
  });
  add("int8_int8", 8, [=](const uint8_t* p, int64_t k, float* y) {
    t.int8_int8(codes.rows, scales.data(), rows, reinterpret_cast<const int8_t*>(p), scales.data(),
                k, y);
  });
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) void read_memory(benchmark::State& state) {
  const std::vector<uint8_t>& bytes = memory();
  for (auto _ : state) {
    __m256i sum[4] = {};
    for (size_t i = 0; i < bytes.size(); i += 128) {
      const auto* p = reinterpret_cast<const __m256i*>(bytes.data() + i);
      __builtin_prefetch(reinterpret_cast<const char*>(p) + 4096);
      __builtin_prefetch(reinterpret_cast<const char*>(p) + 4096 + 64);
      for (int j = 0; j < 4; ++j) sum[j] = _mm256_xor_si256(sum[j], _mm256_loadu_si256(p + j));
    }
    benchmark::DoNotOptimize(sum);
  }
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * static_cast<double>(state.iterations()) * kStreamBytes, benchmark::Counter::kIsRate);
}

__attribute__((target("avx2,fma"))) void multiply_add_peak(benchmark::State& state) {
  constexpr int kTurns = 1000;
  __m256 a[10] = {};
  __m256 x = _mm256_set1_ps(0.5f);
  for (auto _ : state) {
    for (int i = 0; i < kTurns; ++i) {
      // The empty statement hides each factor from the compiler, so that it folds none.
      asm volatile("" : "+x"(x));
      a[0] = _mm256_fmadd_ps(a[0], x, x);
      a[1] = _mm256_fmadd_ps(a[1], x, x);
      a[2] = _mm256_fmadd_ps(a[2], x, x);
      a[3] = _mm256_fmadd_ps(a[3], x, x);
      a[4] = _mm256_fmadd_ps(a[4], x, x);
      a[5] = _mm256_fmadd_ps(a[5], x, x);
      a[6] = _mm256_fmadd_ps(a[6], x, x);
      a[7] = _mm256_fmadd_ps(a[7], x, x);
      a[8] = _mm256_fmadd_ps(a[8], x, x);
      a[9] = _mm256_fmadd_ps(a[9], x, x);
    }
    for (int i = 0; i < 10; ++i) asm volatile("" : "+x"(a[i]));
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(1e-9 * static_cast<double>(state.iterations()) * kTurns * 10 * 8 * 2,
                         benchmark::Counter::kIsRate);
}

#endif

void register_all() {
  memory();  // not in the time of the first benchmark
  std::vector<const TileKernels*> tables;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    benchmark::RegisterBenchmark("machine/read", read_memory);
    benchmark::RegisterBenchmark("machine/multiply_add", multiply_add_peak);
    tables.push_back(&kAvx2Tiles);
  }
#endif
  tables.push_back(&kPortableTiles);
  for (const TileKernels* t : tables) {
    for (bool stream : {false, true}) {
      for (int rows : {1, kMaxRows}) run_all(*t, rows, stream);
    }
  }
}

}  // namespace
}  // namespace moracle::cpu

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  moracle::cpu::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
