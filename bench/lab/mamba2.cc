// Times the operations of one Mamba-2 layer of Nemotron-3 Nano's shape, without its linear layers:
// the short convolution, the state space, gate and norm. On a GPU by replay of a graph. Several
// layers with memory of their own take turns, so that no state comes from a cache.
//
//   g++ -std=c++20 -O2 -Iinclude -Isrc bench/lab/mamba2.cc build/cuda/libmoracle.a … -o mamba2
//   ./mamba2 [cpu|cuda] [threads]
#include <algorithm>
#include <chrono>
#include <cmath>
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

// Sizes of nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B.
constexpr int64_t kHeads = 64, kDim = 64, kGroups = 8, kStates = 128, kTaps = 4;
constexpr int64_t kInner = kHeads * kDim, kMixed = kInner + 2 * kGroups * kStates;
constexpr int64_t kProjected = kInner + kMixed + kHeads;
constexpr int64_t kHeadsState = kInner * kStates * 4;
constexpr int64_t kState = kHeadsState + (kTaps - 1) * kMixed * 4;

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
  Matrix projected, mixed, out;
};

Matrix columns(Matrix matrix, int64_t first, int64_t count) {
  matrix.data = static_cast<std::byte*>(matrix.data) + first * bits(matrix.dtype) / 8;
  matrix.cols = count;
  return matrix;
}

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
                timer.matrix(tokens, kMixed),
                timer.matrix(tokens, kInner)};
    layer.batch.num_tokens = tokens, layer.batch.num_sequences = sequences;
    layer.batch.most_tokens = layer.batch.fewest_tokens = tokens_each;
    layer.batch.sequences = timer.upload(ids), layer.batch.first_token = timer.upload(first);
    layer.batch.states = timer.upload(states);
    layers.push_back(layer);
  }
  const float* const weights = timer.upload(std::vector<float>(kTaps * kMixed, 0.3f));
  const float* const dt_bias = timer.upload(std::vector<float>(kHeads, -3));
  const Mamba2Shape shape{kHeads, kGroups, kDim, kStates, 0, INFINITY, 0, batch_invariant};
  const ConvolutionShape convolution{kTaps, true, kHeadsState, {}, weights};
  const auto of = [&](int i) -> Layer& { return layers[static_cast<size_t>(i % turns)]; };
  const auto convolve = [&](int i) {
    must(ops.convolve(columns(of(i).projected, kInner, kMixed), weights, convolution, of(i).batch,
                      of(i).mixed, {}));
  };
  const auto run = [&](int i) {
    must(ops.mamba2(of(i).mixed, columns(of(i).projected, kInner + kMixed, kHeads), dt_bias,
                    dt_bias, dt_bias, shape, of(i).batch, of(i).out, {}));
  };
  const auto finish = [&](int i) {
    must(ops.gate_and_norm(of(i).out, columns(of(i).projected, 0, kInner), weights,
                           kInner / kGroups, 1e-5f, {}));
  };
  const int calls = device.platform() == Platform::kCpu ? 1 : tokens > 64 ? 4 : 32;
  std::printf("%4ld x %5ld%s: convolution %9.1f us, state space %9.1f us, gate and norm %9.1f us\n",
              static_cast<long>(sequences), static_cast<long>(tokens_each),
              batch_invariant ? " deterministic" : "", timer.median(calls, convolve),
              timer.median(calls, run), timer.median(calls, finish));
}

}  // namespace

int main(int argc, char** argv) {
  const auto device =
      must(open_device(argc > 1 ? argv[1] : "cpu", argc > 2 ? std::atoi(argv[2]) : 0));
  for (const int64_t sequences : {1, 8, 64}) time_step(*device, sequences, 1, false);
  for (const int64_t tokens : {17, 64, 2048, 8192}) time_step(*device, 1, tokens, false);
  time_step(*device, 1, 2048, true);
}
