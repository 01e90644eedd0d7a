// The operations beside the GEMMs, as a model calls them: one token and a prompt, on one thread and
// on all. Beside them, in the same run, a copy of the bytes that attention reads.
//
//   ops_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only=true   (read the
//   medians)
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "kernels/ops.h"
#include "models/generation/sampler.h"
#include "moracle/device.h"

namespace moracle {
namespace {

std::vector<float> numbers(int64_t count) {
  std::vector<float> values(count);
  uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  return values;
}

Device& device(int64_t threads) {
  static const auto one = *open_device("cpu", 1), all = *open_device("cpu", 0);
  return threads == 1 ? *one : *all;
}

Matrix matrix(std::vector<float>& values, int64_t rows) {
  return Matrix::f32(values.data(), rows, static_cast<int64_t>(values.size()) / rows);
}

/// range(0): threads, range(1): rows.
template <class Work>
void run(benchmark::State& state, Work work) {
  Ops& ops = kernel_device(device(state.range(0))).ops();
  for (auto _ : state) {
    if (!work(ops)) state.SkipWithError("refused");
    benchmark::ClobberMemory();
  }
}

void activate(benchmark::State& state, Activation function) {
  const int64_t rows = state.range(1), size = 768;
  std::vector<float> in = numbers(rows * 2 * size), out(rows * size);
  run(state, [&](Ops& ops) {
    return ops.activate({function, 1.702f, 1, 7}, size, matrix(in, rows), matrix(out, rows), {});
  });
}

void quantize(benchmark::State& state, QuantKey key) {
  const int64_t rows = state.range(1), cols = 2048;
  std::vector<float> in = numbers(rows * cols), scales(rows * cols / 32);
  std::vector<uint8_t> codes(rows * cols);
  const int64_t groups = key.group.cols == GroupShape::kAll ? 1 : cols / key.group.cols;
  const Rows to{{codes.data(), key.dtype, rows, cols, cols}, scales.data(), groups};
  run(state, [&](Ops& ops) { return ops.quantize(matrix(in, rows), key, to, {}); });
}

void combine(benchmark::State& state) {
  const int64_t tokens = state.range(1), cols = 2048, top_k = 8;
  std::vector<float> y = numbers(tokens * top_k * cols), out(tokens * cols),
                     weights = numbers(tokens * top_k);
  std::vector<int32_t> slots(tokens * top_k);
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
  run(state, [&](Ops& ops) {
    return ops.combine(matrix(y, tokens * top_k), slots.data(), weights.data(), top_k,
                       matrix(out, tokens), {});
  });
}

void to_bf16(benchmark::State& state) {
  const int64_t rows = state.range(1), cols = 2048;
  std::vector<float> in = numbers(rows * cols);
  std::vector<uint16_t> out(rows * cols);
  const Matrix to{out.data(), DType::kBF16, rows, cols, cols};
  run(state, [&](Ops& ops) { return ops.convert(matrix(in, rows), to, {}); });
}

void rms_norm(benchmark::State& state) {
  const int64_t rows = state.range(1), cols = 2048;
  std::vector<float> in = numbers(rows * cols), out(rows * cols), weight = numbers(cols);
  run(state, [&](Ops& ops) {
    return ops.rms_norm(matrix(in, rows), weight.data(), cols, 1e-6f, matrix(out, rows), {});
  });
}

void head_norm(benchmark::State& state) {
  const int64_t rows = state.range(1), cols = 32 * 128;
  std::vector<float> in = numbers(rows * cols), out(rows * cols), weight = numbers(128);
  run(state, [&](Ops& ops) {
    return ops.rms_norm(matrix(in, rows), weight.data(), 128, 1e-6f, matrix(out, rows), {});
  });
}

void add(benchmark::State& state) {
  const int64_t rows = state.range(1), cols = 2048;
  std::vector<float> x = numbers(rows * cols), y(rows * cols);
  run(state, [&](Ops& ops) { return ops.add(matrix(x, rows), matrix(y, rows), {}); });
}

void rotate(benchmark::State& state) {
  const int64_t rows = state.range(1), heads = 32, dim = 128;
  std::vector<float> x = numbers(rows * heads * dim), frequencies(dim / 2);
  for (int64_t i = 0; i < dim / 2; ++i)
    frequencies[i] = static_cast<float>(std::pow(1e6, -2.0 * static_cast<double>(i) / dim));
  std::vector<int32_t> positions(rows);
  for (int64_t r = 0; r < rows; ++r) positions[r] = static_cast<int32_t>(4000 + r);
  run(state, [&](Ops& ops) {
    return ops.rotate(matrix(x, rows), {dim, dim / 2}, frequencies.data(), positions.data(), {});
  });
}

struct Heads {
  int64_t q, kv, dim, value_dim;
};
/// range(1): tokens, range(2): tokens in the cache before them. Uses caches of 256 MiB together
/// round-robin, as the layers of a model have them.
void attend(benchmark::State& state, Heads heads) {
  const int64_t tokens = state.range(1), position = state.range(2), capacity = position + tokens;
  const int64_t key_row = heads.kv * heads.dim, value_row = heads.kv * heads.value_dim;
  const int64_t bytes = capacity * (key_row + value_row) * 4;
  const int64_t layers = std::max<int64_t>(1, (int64_t{256} << 20) / bytes);
  // Allocate like the model's caches: on huge pages if available.
  const Buffer memory = *device(1).allocate(static_cast<size_t>(layers * bytes));
  const std::vector<float> content = numbers(bytes / 4);
  for (int64_t i = 0; i < layers; ++i)
    std::copy(content.begin(), content.end(), memory.as<float>() + i * bytes / 4);
  std::vector<float> q = numbers(tokens * heads.q * heads.dim), k = numbers(tokens * key_row),
                     v = numbers(tokens * value_row), out(tokens * heads.q * heads.value_dim);
  AttentionShape shape{heads.q, heads.kv, heads.dim, heads.value_dim,
                       1 / std::sqrt(static_cast<float>(heads.dim))};
  shape.cache.values = capacity * key_row * 4;
  // One page holds all positions of a layer.
  const std::vector<int32_t> ids(tokens);
  const int64_t page = (capacity + 255) / 256 * 256;
  BatchTable table;
  int64_t layer = 0;
  run(state, [&](Ops& ops) -> Status {
    std::byte* const pages[] = {memory.as<std::byte>() + layer * bytes};
    if (++layer == layers) layer = 0;
    const SequenceTokens sequence{ids, position, pages};
    MORACLE_CHECK(table.fill({&sequence, 1}, page, device(1), {}));
    const Matrix x = matrix(q, tokens);
    MORACLE_CHECK(ops.append(matrix(k, tokens), matrix(v, tokens), table.batch(), shape.cache, {}));
    return ops.attend(x, table.batch(), shape, matrix(out, tokens), nullptr, {});
  });
  const auto calls = static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["GB/s"] = Counter(calls * 1e-9 * static_cast<double>(bytes), Counter::kIsRate);
  const double pairs = static_cast<double>(tokens) *
                       (static_cast<double>(position) + 0.5 * static_cast<double>(tokens + 1));
  state.counters["GFLOP/s"] =
      Counter(calls * 2e-9 * pairs * static_cast<double>(heads.q * (heads.dim + heads.value_dim)),
              Counter::kIsRate);
}

/// The memory traffic of attention alone: adds up as many bytes, each once.
void read_memory(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const std::vector<float> values = numbers(int64_t{64} << 20);
  const auto count = static_cast<int64_t>(values.size());
  for (auto _ : state) {
    pool.split(count, [&](int64_t begin, int64_t end) {
      uint64_t sums[8] = {};
      for (int64_t i = begin; i + 16 <= end; i += 16) {
        for (int64_t j = 0; j < 8; ++j) {
          uint64_t both;
          std::memcpy(&both, &values[i + 2 * j], sizeof both);
          sums[j] ^= both;
        }
      }
      for (uint64_t& sum : sums) benchmark::DoNotOptimize(sum);
    });
  }
  state.counters["GB/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * 4e-9 * static_cast<double>(count),
      benchmark::Counter::kIsRate);
}

void empty_job(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) pool.run([](int) {});
}

void sample(benchmark::State& state, SamplingOptions options) {
  std::vector<float> logits = numbers(151936);
  for (float& logit : logits) logit *= 12;
  Sampler sampler(options);
  for (auto _ : state) benchmark::DoNotOptimize(sampler.draw(logits));
}

#define MORACLE_ROWS ArgsProduct({{1, 2}, {1, 512}})->UseRealTime()->Unit(benchmark::kMicrosecond)
BENCHMARK_CAPTURE(activate, silu, Activation::kSilu)
    ->ArgsProduct({{1, 2}, {1, 8, 512}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(activate, gelu, Activation::kGelu)->MORACLE_ROWS;
BENCHMARK_CAPTURE(quantize, int8, kInt8DynamicTokenSym)->MORACLE_ROWS;
BENCHMARK_CAPTURE(quantize, fp8_token, kFp8DynamicTokenSym)->MORACLE_ROWS;
BENCHMARK_CAPTURE(quantize, fp8_group, fp8_dynamic_group(128))->MORACLE_ROWS;
BENCHMARK_CAPTURE(quantize, mxfp8, kMxfp8Dynamic)->MORACLE_ROWS;
BENCHMARK(combine)->MORACLE_ROWS;
BENCHMARK(to_bf16)->MORACLE_ROWS;
BENCHMARK(rms_norm)->MORACLE_ROWS;
BENCHMARK(head_norm)->MORACLE_ROWS;
BENCHMARK(add)->MORACLE_ROWS;
BENCHMARK(rotate)->MORACLE_ROWS;
BENCHMARK(read_memory)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(attend, grouped, (Heads{32, 4, 128, 128}))
    ->ArgsProduct({{1, 2}, {1}, {100, 4095}})
    ->Args({1, 512, 0})
    ->Args({1, 512, 3584})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(attend, each_its_own, (Heads{16, 16, 192, 128}))
    ->ArgsProduct({{1, 2}, {1}, {100, 4095}})
    ->Args({1, 512, 0})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(empty_job)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kNanosecond);
BENCHMARK_CAPTURE(sample, greedy, (SamplingOptions{.temperature = 0}))
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(sample, temperature, (SamplingOptions{.temperature = 0.8f}))
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(sample, top_k_top_p,
                  (SamplingOptions{.temperature = 0.8f, .top_k = 20, .top_p = 0.95f}))
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(sample, top_p, (SamplingOptions{.temperature = 0.8f, .top_p = 0.95f}))
    ->Unit(benchmark::kMicrosecond);
#undef MORACLE_ROWS

}  // namespace
}  // namespace moracle

BENCHMARK_MAIN();
