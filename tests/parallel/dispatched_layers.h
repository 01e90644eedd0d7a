// A small layer of experts on the CPU, tokens of its ranks, and the results of one process.
#pragma once

#include <algorithm>
#include <random>
#include <stdexcept>

#include "moracle/moe.h"
#include "timing/random_layer.h"

namespace moracle::testing {

inline constexpr int64_t kHidden = 64, kExperts = 5, kTopK = 3, kMostTokens = 8;

inline LayerSpec layer_of(const Scheme& scheme) {
  LayerSpec layer;
  layer.name = "layer";
  layer.num_experts = kExperts, layer.top_k = kTopK;
  layer.hidden_size = kHidden, layer.intermediate_size = 32;
  layer.scheme = scheme;
  return layer;
}

// Tokens of one rank, with experts that any rank may hold and some ids of -1.
struct Tokens {
  std::vector<float> hidden, weights;
  std::vector<int32_t> ids;
  int64_t count() const { return static_cast<int64_t>(ids.size()) / kTopK; }
};
inline Tokens tokens_of(int64_t rank, int64_t count, int64_t num_experts = kExperts) {
  std::mt19937 engine(static_cast<uint32_t>(rank + 1));
  std::normal_distribution<float> normal;
  Tokens tokens;
  for (int64_t i = 0; i < count * kHidden; ++i) tokens.hidden.push_back(normal(engine));
  for (int64_t t = 0; t < count; ++t) {
    std::vector<int32_t> experts(num_experts);
    for (int32_t e = 0; e < num_experts; ++e) experts[e] = e;
    std::shuffle(experts.begin(), experts.end(), engine);
    for (int64_t j = 0; j < kTopK; ++j) {
      tokens.ids.push_back(t % 4 == 3 && j == 1 ? -1 : experts[j]);
      tokens.weights.push_back(0.1f + 0.2f * static_cast<float>(j));
    }
  }
  return tokens;
}

inline Result<FusedMoe> make_moe(const LayerSpec& layer, const Parallelism& parallel,
                                 const std::shared_ptr<Device>& device, int64_t most_tokens,
                                 const std::string& backend = "auto") {
  Request request;
  request.layer = layer;
  request.parallel = parallel;
  request.max_num_tokens = most_tokens;
  request.deterministic = true;
  request.backend = backend;
  request.platform = device->platform();
  return FusedMoe::make(moracle::timing::random_layer(layer, 3), select(request, Machine::here()),
                        device);
}

// The results of one process for the tokens.
inline std::vector<float> expected(const LayerSpec& layer, const Tokens& tokens,
                                   const std::string& backend = "auto") {
  std::vector<float> output(tokens.hidden.size());
  if (tokens.count() == 0) return output;
  auto moe = make_moe(layer, {}, *open_device("cpu", 1), tokens.count(), backend);
  if (!moe) throw std::runtime_error(moe.error().to_string());
  Tokens own = tokens;
  const Status done =
      moe->apply(Matrix::f32(own.hidden.data(), own.count(), kHidden), {own.ids.data()},
                 {own.weights.data()}, Matrix::f32(output.data(), own.count(), kHidden));
  if (!done) throw std::runtime_error(done.error().to_string());
  return output;
}

/// Both sides run the same backend. Only the order of f32 sums differs, over outputs of about 1.
inline constexpr double kOrderOfSums = 2e-5;

inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = a.size() == b.size() ? 0 : 1e30;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

}  // namespace moracle::testing
