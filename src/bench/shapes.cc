// The experts of published models: one row each.
#include "base/text.h"
#include "bench/bench.h"
#include "conformance/conformance.h"

namespace moracle::bench {
namespace {

const ActivationSpec kSwigluOai = {.function = Activation::kSwigluOai, .limit = 7};

const LayerShape kShapes[] = {
    {"qwen3-30b-a3b", 128, 2048, 768, 8, {}, false},
    {"qwen3-235b-a22b", 128, 4096, 1536, 8, {}, false},
    {"mixtral-8x7b", 8, 4096, 14336, 2, {}, false},
    // The 32 experts of one of eight ranks. Each token that arrives goes to eight of them.
    {"deepseek-v3-ep8", 32, 7168, 2048, 8, {}, false},
    {"glm-5.2-ep8", 32, 6144, 2048, 8, {}, false},
    {"gpt-oss-120b", 128, 2880, 2880, 4, kSwigluOai, true},
    {"qwen3-next-80b-a3b", 512, 2048, 512, 10, {}, false},
    {"qwen3.6-35b-a3b", 256, 2048, 512, 8, {}, false},
};

}  // namespace

std::span<const LayerShape> known_shapes() {
  return kShapes;
}

Result<LayerShape> find_shape(std::string_view text) {
  std::vector<std::string> names;
  for (const LayerShape& shape : kShapes) {
    if (shape.name == text) return shape;
    names.push_back(shape.name);
  }
  const auto sizes = conformance::parse_shape(text);
  if (!sizes) {
    Error error = sizes.error();
    error.need += ", or one of " + join(names);
    return error;
  }
  return LayerShape{name(*sizes),
                    sizes->num_experts,
                    sizes->hidden_size,
                    sizes->intermediate_size,
                    sizes->top_k,
                    {},
                    false};
}

LayerSpec layer_of(const LayerShape& shape, const Scheme& scheme) {
  LayerSpec spec;
  spec.name = shape.name;
  spec.num_experts = shape.num_experts;
  spec.hidden_size = shape.hidden_size;
  spec.intermediate_size = shape.intermediate_size;
  spec.top_k = shape.top_k;
  spec.activation = shape.activation;
  spec.bias = shape.bias;
  spec.scheme = scheme;
  return spec;
}

}  // namespace moracle::bench
