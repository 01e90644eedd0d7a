// Experts in an engine that has its own memory, threads and tensors: route and apply. Needs only
// the component experts.
#include <moracle/moe.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

constexpr int64_t kExperts = 8, kTopK = 2, kHidden = 128, kInner = 64, kTokens = 5;

// What the engine has: an allocator, threads, tensors. Tasks of the library are independent.
struct Engine {
  size_t live = 0, largest = 0, jobs = 0;
  std::vector<float> w13;  // [kExperts, 2 * kInner, kHidden], gate rows first
  std::vector<float> w2;   // [kExperts, kHidden, kInner]
  void* allocate(size_t bytes) {
    live += bytes, largest = std::max(largest, live);
    return std::aligned_alloc(moracle::kMemoryAlignment, (bytes + 63) / 64 * 64);
  }
  void free(void* data, size_t bytes) {
    live -= bytes;
    std::free(data);
  }
  void run(int count, const std::function<void(int)>& task) {
    ++jobs;
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) threads.emplace_back([&, i] { task(i); });
    for (std::thread& thread : threads) thread.join();
  }
};

// ---- the integration: about 40 lines

moracle::TensorView view(const std::vector<float>& values, std::vector<int64_t> shape) {
  return {reinterpret_cast<const std::byte*>(values.data()), moracle::DType::kF32,
          std::move(shape)};
}

struct Layer {
  std::shared_ptr<moracle::Device> device;
  moracle::FusedMoe moe;
};

moracle::Result<Layer> load(Engine& engine) {
  moracle::DeviceOptions options;
  options.threads = 2;
  options.allocate = [&](size_t bytes) { return engine.allocate(bytes); };
  options.free = [&](void* data, size_t bytes) { engine.free(data, bytes); };
  options.run_tasks = [&](int count, const auto& task) { engine.run(count, task); };
  auto device = moracle::open_device("cpu", options);
  if (!device) return device.error();
  moracle::StoredExperts stored;  // tensors on a GPU: stored.read calls Device::read
  stored.w13.weight = view(engine.w13, {kExperts, 2 * kInner, kHidden});
  stored.w2.weight = view(engine.w2, {kExperts, kHidden, kInner});
  moracle::LayerSpec spec{
      .name = "layers.0.experts", .top_k = kTopK, .scheme = *moracle::parse_scheme("f32")};
  auto floats = moracle::describe(std::move(stored), spec);
  if (!floats) return floats.error();
  auto weights =
      moracle::quantize(*std::move(floats), *moracle::parse_scheme("int8-w8a16-channel"));
  if (!weights) return weights.error();
  const moracle::Request request{
      .layer = weights->spec, .max_num_tokens = kTokens, .platform = moracle::Platform::kCpu};
  const auto selection = moracle::select(request, moracle::Machine::here());
  auto moe = moracle::FusedMoe::make(*std::move(weights), selection, *device);  // packs once
  if (!moe) return moe.error();
  return Layer{*std::move(device), *std::move(moe)};
}

// Overwrites the logits. Allocates nothing.
moracle::Status forward(Layer& layer, const float* hidden, float* logits, int32_t* ids,
                        float* weights, float* output) {
  const auto routed = moracle::route(*layer.device, moracle::Matrix::f32(logits, kTokens, kExperts),
                                     layer.moe.plan().layer.routing, kTopK, {}, ids, weights);
  if (!routed) return routed;
  return layer.moe.apply(moracle::ConstMatrix::f32(hidden, kTokens, kHidden), {ids}, {weights},
                         moracle::Matrix::f32(output, kTokens, kHidden));
}

// ---- the same in float64, without moracle

double dot(const float* weights, const double* x, int64_t size) {
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += weights[i] * x[i];
  return sum;
}

std::vector<double> expert(const Engine& engine, int64_t e, const float* hidden) {
  const std::vector<double> x(hidden, hidden + kHidden);
  std::vector<double> inner(kInner), output(kHidden);
  const float *const gate = &engine.w13[e * 2 * kInner * kHidden], *const up =
                                                                       gate + kInner * kHidden;
  for (int64_t i = 0; i < kInner; ++i) {
    const double g = dot(gate + i * kHidden, x.data(), kHidden);
    inner[i] = g / (1 + std::exp(-g)) * dot(up + i * kHidden, x.data(), kHidden);
  }
  for (int64_t n = 0; n < kHidden; ++n)
    output[n] = dot(&engine.w2[(e * kHidden + n) * kInner], inner.data(), kInner);
  return output;
}

moracle::Result<double> relative_error(Engine& engine) {
  std::vector<float> hidden(kTokens * kHidden), logits(kTokens * kExperts), output(hidden.size());
  for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = std::sin(0.37f * static_cast<float>(i));
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::cos(1.7f * static_cast<float>(i));
  std::vector<int32_t> ids(kTokens * kTopK);
  std::vector<float> weights(ids.size());
  auto layer = load(engine);
  if (!layer) return layer.error();
  const auto done =
      forward(*layer, hidden.data(), logits.data(), ids.data(), weights.data(), output.data());
  if (!done) return done.error();
  double error = 0, norm = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    std::vector<double> want(kHidden);
    for (int64_t j = t * kTopK; j < (t + 1) * kTopK; ++j) {
      const auto one = expert(engine, ids[j], &hidden[t * kHidden]);
      for (int64_t n = 0; n < kHidden; ++n) want[n] += weights[j] * one[n];
    }
    for (int64_t n = 0; n < kHidden; ++n) {
      error += std::pow(output[t * kHidden + n] - want[n], 2);
      norm += want[n] * want[n];
    }
  }
  return std::sqrt(error / norm);
}

}  // namespace

int main() {
  Engine engine;
  for (int64_t i = 0; i < kExperts * 2 * kInner * kHidden; ++i)
    engine.w13.push_back(0.1f * std::sin(0.11f * static_cast<float>(i * i % 1009)));
  for (int64_t i = 0; i < kExperts * kHidden * kInner; ++i)
    engine.w2.push_back(0.1f * std::cos(0.13f * static_cast<float>(i * i % 1013)));
  const auto error = relative_error(engine);
  if (!error) {
    std::fprintf(stderr, "%s\n", error.error().to_string().c_str());
    return 1;
  }
  std::printf("int8 weights: relative error %s\n", *error < 0.02 ? "below 2 %" : "too large");
  std::printf("engine: %s jobs, %s memory, %zu bytes left\n", engine.jobs > 0 ? "some" : "no",
              engine.largest > 0 ? "some" : "no", engine.live);
}
