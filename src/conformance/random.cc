// Random weights, adapters and inputs: the same seed gives the same values on every machine.
#include <algorithm>
#include <cmath>
#include <random>

#include "base/scalar.h"
#include "conformance/conformance.h"

namespace moracle::conformance {

DescribedWeights random_weights(const LayerSpec& spec, uint64_t seed) {
  const std::vector<MatrixShape> matrices = spec.matrices();
  std::vector<CanonicalMatrix> w13, w2;
  for (int64_t e = 0; e < spec.num_experts; ++e) {
    w13.push_back(random_matrix(matrices[0], seed + 2 * e));
    w2.push_back(random_matrix(matrices[1], seed + 2 * e + 1));
    if (matrices[0].group_index) shuffle_groups(w13.back(), seed + 2 * e);
    if (matrices[1].group_index) shuffle_groups(w2.back(), seed + 2 * e + 1);
  }
  DescribedWeights weights{spec, DescribedMatrix::from(spec.scheme, std::move(w13)),
                           DescribedMatrix::from(spec.scheme, std::move(w2))};
  if (spec.scheme.activation && !spec.scheme.activation->dynamic) {
    // Scales differ from expert to expert, and are small enough that some inputs saturate.
    std::vector<float> scales13, scales2;
    for (int64_t e = 0; e < spec.num_experts; ++e) {
      scales13.push_back(0.004f + 0.001f * static_cast<float>(e % 5));
      scales2.push_back(0.002f + 0.0005f * static_cast<float>(e % 3));
    }
    weights.w13.set_input_scales(std::move(scales13));
    weights.w2.set_input_scales(std::move(scales2));
  }
  return weights;
}

Inputs random_inputs(const Request& request, int64_t num_tokens, Spread spread, uint64_t seed) {
  const LayerSpec& layer = request.layer;
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  Inputs in;
  in.hidden.resize(num_tokens * layer.hidden_size);
  for (float& x : in.hidden) x = normal(engine);
  for (int64_t t = 0; t < num_tokens; ++t) {
    // A random order of the experts: the first top_k are distinct.
    std::vector<int32_t> order(layer.num_experts);
    for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int32_t>(e);
    std::shuffle(order.begin(), order.end(), engine);
    if (spread == Spread::kOneExpert)
      std::iter_swap(order.begin(), std::find(order.begin(), order.end(), 0));
    for (int64_t j = 0; j < layer.top_k; ++j) {
      int32_t id = order[j];
      if (spread == Spread::kHoles && engine() % 3 == 0) id = -1;
      in.ids.push_back(id);
      in.weights.push_back(0.05f + static_cast<float>(engine() % 1000) / 1000);
    }
    if (request.lora_rank > 0)
      in.lora_ids.push_back(static_cast<int32_t>(t % (request.max_adapters + 1)) - 1);
  }
  return in;
}

std::vector<LoraWeights> random_adapters(const Request& request, uint64_t seed) {
  const LayerSpec& layer = request.layer;
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  auto pair = [&](int64_t rank, int64_t rows, int64_t cols) {
    LoraPair made{rank, 0.5f, {}, {}};
    made.a.resize(rank * cols);
    made.b.resize(rows * rank);
    for (float& a : made.a) a = uniform(engine) / std::sqrt(static_cast<float>(cols));
    for (float& b : made.b) b = uniform(engine);
    return made;
  };
  std::vector<LoraWeights> adapters(request.lora_rank > 0 ? request.max_adapters : 0);
  for (size_t i = 0; i < adapters.size(); ++i) {
    const int64_t rank = std::max<int64_t>(1, request.lora_rank - 3 * static_cast<int64_t>(i));
    for (int64_t e = 0; e < layer.num_experts; ++e) {
      const bool left_alone = i > 0 && e % 2 == 1;
      const int64_t here = left_alone ? 0 : rank;
      if (is_gated(layer.activation.function) && i == 0)
        adapters[i].gate.push_back(pair(here, layer.intermediate_size, layer.hidden_size));
      adapters[i].up.push_back(pair(here, layer.intermediate_size, layer.hidden_size));
      adapters[i].down.push_back(pair(here, layer.hidden_size, layer.intermediate_size));
    }
  }
  return adapters;
}

void round_to(DType activation_dtype, Inputs& in, std::vector<LoraWeights>& adapters) {
  if (activation_dtype != DType::kBF16) return;
  auto round = [](std::vector<float>& values) {
    for (float& value : values) value = bf16_to_float(float_to_bf16(value));
  };
  round(in.hidden);
  for (LoraWeights& adapter : adapters) {
    for (std::vector<LoraPair>* pairs : {&adapter.gate, &adapter.up, &adapter.down}) {
      for (LoraPair& pair : *pairs) {
        round(pair.a);
        round(pair.b);  // times a power of two: random_adapters has no other scale
      }
    }
  }
}

}  // namespace moracle::conformance
