// Times the operations of one gated DeltaNet layer of Qwen3-Next's shape, without its linear
// layers: the short convolution, the delta rule, norm and gate. On a GPU by replay of a graph.
// Several layers with memory of their own take turns, so that no state comes from a cache.
//
//   g++ -std=c++20 -O2 -Iinclude -Isrc bench/lab/gated_delta.cc build/cuda/libmoracle.a … -o
//   gated_delta
//   ./gated_delta [cpu|cuda] [threads]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/scalar.h"
#include "kernels/ops.h"
#include "moracle/device.h"

namespace {

using namespace moracle;

// Sizes by transformers' default of Qwen3NextConfig.
constexpr int64_t kKeyHeads = 16, kValueHeads = 32, kDim = 128, kTaps = 4;
constexpr int64_t kValues = kValueHeads * kDim, kMixed = 2 * kKeyHeads * kDim + kValues;
constexpr int64_t kGroup = 2 * kDim + 2 * kValues / kKeyHeads, kProjected = kKeyHeads * kGroup;
constexpr int64_t kRuleState = kValueHeads * kDim * kDim * 4;
constexpr int64_t kState = kRuleState + (kTaps - 1) * kMixed * 4;

void must(const Status& status) {
  if (status) return;
  std::printf("%s\n", status.error().to_string().c_str());
  std::exit(1);
}
template <class T>
T must(Result<T> result) {
  must(result ? Status() : Status(result.error()));
  return *std::move(result);
}

struct Timer {
  Device& device;
  std::mt19937 random{1};
  std::vector<Buffer> buffers = {};

  std::byte* memory(int64_t bytes) {
    return buffers.emplace_back(must(device.allocate(bytes))).as<std::byte>();
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    std::byte* const to = memory(static_cast<int64_t>(values.size() * sizeof(T)));
    must(device.upload(to, values.data(), values.size() * sizeof(T)));
    return reinterpret_cast<T*>(to);
  }
  Matrix matrix(int64_t rows, int64_t cols) {
    std::normal_distribution<float> normal;
    std::vector<float> values(rows * cols);
    for (float& value : values) value = normal(random);
    if (device.activation_dtype() == DType::kF32)
      return {upload(values), DType::kF32, rows, cols, cols};
    std::vector<uint16_t> halves;
    for (const float value : values) halves.push_back(float_to_bf16(value));
    return {upload(halves), DType::kBF16, rows, cols, cols};
  }
  // Median µs of one call: run(i) is the i-th.
  double median(int calls, const std::function<void(int)>& run) {
    const auto all = [&]() -> Status {
      for (int i = 0; i < calls; ++i) run(i);
      return {};
    };
    must(all());
    must(device.synchronize());
    const auto graph = must(device.record(all, {}));
    std::vector<double> times;
    for (int i = 0; i < 9; ++i) {
      if (graph != nullptr) {
        const auto timeline = must(device.timeline({}));
        must(timeline->mark());
        must(graph->replay());
        must(timeline->mark());
        times.push_back(must(timeline->take()).front() / calls);
      } else {
        const auto start = std::chrono::steady_clock::now();
        must(all());
        times.push_back(
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                .count() /
            calls);
      }
    }
    std::nth_element(times.begin(), times.begin() + 4, times.end());
    return times[4];
  }
};

struct Layer {
  Batch batch;
  Matrix projected, ba, mixed, out;
};

void time_step(Device& device, int64_t sequences, int64_t tokens_each, bool batch_invariant) {
  Timer timer{device};
  Ops& ops = kernel_device(device).ops();
  const int64_t tokens = sequences * tokens_each;
  const auto turns = static_cast<int>(std::clamp<int64_t>(
      (int64_t{512} << 20) / (2 * sequences * kState + tokens * 50'000), 1, 16));
  std::vector<Layer> layers;
  for (int i = 0; i < turns; ++i) {
    std::vector<int32_t> ids, first = {0};
    std::vector<std::byte*> states;
    for (int64_t s = 0; s < sequences; ++s) {
      ids.insert(ids.end(), tokens_each, static_cast<int32_t>(s));
      first.push_back(static_cast<int32_t>(ids.size()));
      states.push_back(timer.memory(kState));
      states.push_back(timer.memory(kState));
    }
    Layer layer{{},
                timer.matrix(tokens, kProjected),
                timer.matrix(tokens, 2 * kValueHeads),
                timer.matrix(tokens, kMixed),
                timer.matrix(tokens, kValues)};
    layer.batch.num_tokens = tokens, layer.batch.num_sequences = sequences;
    layer.batch.most_tokens = layer.batch.fewest_tokens = tokens_each;
    layer.batch.sequences = timer.upload(ids), layer.batch.first_token = timer.upload(first);
    layer.batch.states = timer.upload(states);
    layers.push_back(layer);
  }
  const std::vector<float> ones(kTaps * kMixed, 0.3f);
  const float* const weights = timer.upload(ones);
  const float* const dt_bias = timer.upload(std::vector<float>(kValueHeads, -3));
  GatedDeltaShape rule{kKeyHeads, kValueHeads, kDim, kDim, kValueHeads / kKeyHeads, 0};
  rule.batch_invariant = batch_invariant;
  std::byte* const scratch = timer.memory(static_cast<int64_t>(
      gated_delta_scratch_bytes(rule, tokens, device.activation_dtype()) + 64));
  const ConvolutionShape shape{
      kTaps, true, kRuleState, {kKeyHeads, kGroup, {kDim, kDim, kValues / kKeyHeads}}};
  const auto of = [&](int i) -> Layer& { return layers[static_cast<size_t>(i % turns)]; };
  const auto convolve = [&](int i) {
    must(ops.convolve(of(i).projected, weights, shape, of(i).batch, of(i).mixed, {}));
  };
  const auto run_rule = [&](int i) {
    must(ops.gated_delta(of(i).mixed, of(i).ba, dt_bias, dt_bias, rule, of(i).batch, of(i).out,
                         scratch, {}));
  };
  const auto finish = [&](int i) {
    Matrix z = of(i).projected;
    z.data = static_cast<std::byte*>(z.data) + (kGroup - kValues / kKeyHeads) * bits(z.dtype) / 8;
    z.cols -= kGroup - kValues / kKeyHeads;
    must(ops.norm_and_gate(of(i).out, {weights, kDim, 1e-6f, Gate::kSilu}, z, kGroup,
                           kValues / kKeyHeads, of(i).out, {}));
  };
  const int calls = device.platform() == Platform::kCpu ? 1 : tokens > 64 ? 4 : 32;
  std::printf("%4ld x %5ld%s: convolution %9.1f us, rule %9.1f us, norm and gate %9.1f us\n",
              static_cast<long>(sequences), static_cast<long>(tokens_each),
              batch_invariant ? " deterministic" : "", timer.median(calls, convolve),
              timer.median(calls, run_rule), timer.median(calls, finish));
}

}  // namespace

int main(int argc, char** argv) {
  const auto device =
      must(open_device(argc > 1 ? argv[1] : "cpu", argc > 2 ? std::atoi(argv[2]) : 0));
  for (const int64_t sequences : {1, 8, 64}) time_step(*device, sequences, 1, false);
  for (const int64_t tokens : {17, 64, 2048, 8192}) time_step(*device, 1, tokens, false);
  time_step(*device, 1, 2048, true);
}
