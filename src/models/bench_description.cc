#include "models/bench_description.h"

#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "moe/bench.h"

namespace moracle::bench {
namespace {

const ModelShape kModels[] = {
    {"qwen3-30b-a3b", 48, 151936, 40960, 32, 4, 128, 1e6, true, true, {0.6f, 20, 0.95f, 0, 0}},
    {"mixtral-8x7b", 32, 32000, 32768, 32, 8, 128, 1e6, false, true, {}},
};

DescribedMatrix random_linear(int64_t n, int64_t k, const Scheme& scheme, uint64_t seed) {
  MatrixShape shape;
  shape.n = n;
  shape.k = k;
  shape.key = scheme.weight;
  // One scale for the whole tensor is one per row in canonical form.
  if (shape.key.quantized() && shape.key.group == GroupShape{}) shape.key.group = kPerRow;
  return random_experts(shape, scheme, 1, seed);
}

std::vector<float> ones(int64_t count) {
  return std::vector<float>(count, 1.0f);
}

GroupedQueryDescription attention(const ModelShape& shape, int64_t hidden_size,
                                  const Scheme& scheme, uint64_t seed) {
  GroupedQuerySpec spec;
  spec.num_heads = shape.num_heads;
  spec.num_kv_heads = shape.num_kv_heads;
  spec.head_dim = shape.head_dim;
  for (int64_t i = 0; i < shape.head_dim / 2; ++i) {
    const double turn = -2.0 * static_cast<double>(i) / static_cast<double>(shape.head_dim);
    spec.rotary.frequencies.push_back(static_cast<float>(std::pow(shape.rope_theta, turn)));
  }
  const int64_t norms = shape.head_norms ? shape.head_dim : 0,
                heads = shape.num_heads + 2 * shape.num_kv_heads;
  return {std::move(spec),
          ones(norms),
          ones(norms),
          {},
          random_linear(heads * shape.head_dim, hidden_size, scheme, seed),
          random_linear(hidden_size, shape.num_heads * shape.head_dim, scheme, seed + 1)};
}

// Where the file's attention stays in 16 bits beside experts of four (GPT-OSS), so does this.
Scheme attention_scheme(const Scheme& scheme) {
  return scheme.weight.dtype == DType::kF4E2M1 ? Scheme{kBF16Weight, {}} : scheme;
}

}  // namespace

std::span<const ModelShape> known_models() {
  return kModels;
}

Result<ModelShape> find_model(std::string_view name) {
  std::vector<std::string> names;
  for (const ModelShape& shape : kModels) {
    if (shape.name == name) return shape;
    names.push_back(shape.name);
  }
  return Error{ErrorKind::kInvalidArgument, "", "--model-shape", "one of " + join(names),
               str("it is '", name, "'")};
}

Result<RandomModel> random_model(const ModelShape& shape, const Scheme& scheme, int64_t num_layers,
                                 int64_t most_bytes) {
  MORACLE_TRY(const LayerShape layer_shape, find_shape(shape.name));
  const Scheme bf16{kBF16Weight, {}};
  const Scheme linears = attention_scheme(scheme);
  LayerSpec experts = layer_of(layer_shape, scheme);
  experts.routing.renormalize = shape.renormalize;
  const int64_t hidden = experts.hidden_size, table = shape.vocab_size * hidden * 2;
  // The embedding, the output, and the output once more while it is packed.
  const int64_t bytes = num_layers * experts.num_experts * expert_bytes(experts) + 2 * table;
  if (bytes + table > most_bytes) {
    return Error{ErrorKind::kOutOfMemory, "", "--layers",
                 str(bytes + table, " bytes for ", num_layers, " layers"),
                 str("the benchmark keeps below half of the machine's memory, ", most_bytes)};
  }
  const DescribedMatrix embedding = random_linear(shape.vocab_size, hidden, bf16, 1);
  MORACLE_TRY(CanonicalMatrix rows, embedding.expert(0));
  auto owner = std::make_shared<const CanonicalMatrix>(std::move(rows));
  // Step by step: g++ 12 warns falsely about nested lists.
  TensorView table_view;
  table_view.data = owner->codes.data();
  table_view.dtype = DType::kBF16;
  table_view.shape = {shape.vocab_size, hidden};
  Description description{
      {hidden, shape.vocab_size, shape.max_context, 1e-6f, experts.activation.function},
      std::move(table_view),
      {},
      ones(hidden),
      random_linear(shape.vocab_size, hidden, bf16, 2)};
  for (int64_t l = 0; l < num_layers; ++l) {
    const auto seed = static_cast<uint64_t>(8 * (l + 1));
    experts.name = str("model.layers.", l, ".mlp.experts");
    description.layers.push_back(
        {ones(hidden), ones(hidden), attention(shape, hidden, linears, seed),
         RouterDescription{random_linear(experts.num_experts, hidden, bf16, seed + 2), {}},
         random_layer(experts, seed + 4)});
  }
  return RandomModel{std::move(description), std::move(owner), bytes};
}

}  // namespace moracle::bench
