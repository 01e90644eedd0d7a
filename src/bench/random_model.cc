#include "bench/random_model.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/text.h"
#include "base/try.h"
#include "bench/bench.h"
#include "conformance/conformance.h"

namespace moracle::bench {
namespace {

ModelShape gpt_oss_120b() {
  ModelShape shape{"gpt-oss-120b", 36, 201088, 131072, 64, 8, 64, 150'000};
  shape.score = Score::kTopkThenSoftmax;
  shape.biases = shape.sinks = true;
  shape.window = 128;
  shape.sampling.temperature = 1;
  return shape;
}

// The work of one of eight expert-parallel ranks: 32 experts with their own router; attention and
// shared expert are replicated. The three dense layers at the start count as layers with experts.
ModelShape deepseek_v3_ep8() {
  ModelShape shape{"deepseek-v3-ep8", 61, 129280, 163840, 128};
  shape.score = Score::kSigmoid;
  shape.renormalize = true;
  shape.latent = {1536, 512, 128, 64, 128};
  shape.shared_size = 2048;
  shape.sampling = {0.6f, 0, 0.95f};
  return shape;
}

// The work of one of eight expert-parallel ranks, as deepseek_v3_ep8, by config.json of GLM-5.2.
ModelShape glm_5_2_ep8() {
  ModelShape shape{"glm-5.2-ep8", 78, 154880, 1048576, 64};
  shape.rope_theta = 8e6;
  shape.score = Score::kSigmoid;
  shape.renormalize = true;
  shape.latent = {2048, 512, 192, 64, 256};
  shape.latent.indexer = {2048, 32, 128, true};
  shape.latent.indexer_every = 4;
  shape.shared_size = 2048;
  shape.sampling = {1, 0, 0.95f};
  return shape;
}

// Qwen3-Next and Qwen3.5-MoE, by config.json of Qwen3-Next-80B-A3B-Instruct and Qwen3.6-35B-A3B.
ModelShape hybrid(std::string name, int64_t num_layers, int64_t vocab_size, bool by_key_head,
                  const SamplingOptions& sampling) {
  ModelShape shape{std::move(name), num_layers, vocab_size, 262144, 16, 2, 256, 1e7, true, true};
  shape.sampling = sampling;
  shape.partial_rotary_factor = 0.25;
  shape.shared_size = 512;
  shape.shared_gate = true;
  shape.delta = {4, 16, 32, 128, 128, 4, by_key_head};
  return shape;
}

const ModelShape kModels[] = {
    {"qwen3-30b-a3b", 48, 151936, 40960, 32, 4, 128, 1e6, true, true, {0.6f, 20, 0.95f}},
    {"qwen3-235b-a22b", 94, 151936, 40960, 64, 4, 128, 1e6, true, true, {0.6f, 20, 0.95f}},
    {"mixtral-8x7b", 32, 32000, 32768, 32, 8, 128, 1e6, false, true, {}},
    gpt_oss_120b(),
    deepseek_v3_ep8(),
    glm_5_2_ep8(),
    hybrid("qwen3-next-80b-a3b", 48, 151936, true, {0.7f, 20, 0.8f}),
    hybrid("qwen3.6-35b-a3b", 40, 248320, false, {1, 20, 0.95f}),
};

DescribedMatrix random_linear(int64_t n, int64_t k, const Scheme& scheme, uint64_t seed,
                              bool bias = false) {
  MatrixShape shape;
  shape.n = n;
  shape.k = k;
  shape.key = scheme.weight;
  shape.bias = bias;
  // In canonical form, one scale for the whole tensor becomes one scale per row.
  if (shape.key.quantized() && shape.key.group == GroupShape{}) shape.key.group = kPerRow;
  return random_experts(shape, scheme, 1, seed);
}

// Draw every expert's row by itself: experts with equal rows would be chosen together.
DescribedMatrix random_router(const LayerSpec& experts, bool bias, uint64_t seed) {
  const MatrixShape shape{
      .n = experts.num_experts, .k = experts.hidden_size, .key = kBF16Weight, .bias = bias};
  std::vector<CanonicalMatrix> rows;
  rows.push_back(conformance::random_matrix(shape, seed));
  return DescribedMatrix::from({kBF16Weight, {}}, std::move(rows));
}

// Gives every token its own vector. random_experts repeats a few hundred rows, and tokens with
// equal vectors would go to the same experts. Flipped signs tell the repeated rows apart.
DescribedMatrix random_embedding(int64_t vocab_size, int64_t hidden_size) {
  const Scheme bf16{kBF16Weight, {}};
  const auto rows =
      std::make_shared<const DescribedMatrix>(random_linear(vocab_size, hidden_size, bf16, 1));
  DescribedMatrix::Source source;
  source.n = vocab_size;
  source.read = [rows](ThreadPool& pool) -> Result<CanonicalMatrix> {
    MORACLE_TRY(CanonicalMatrix table, rows->expert(0, pool));
    auto* const values = reinterpret_cast<uint16_t*>(table.storage.data());
    const int64_t count = table.n * table.k;
    std::mt19937_64 engine(1);
    for (int64_t i = 0; i < count; i += 64) {
      const uint64_t signs = engine();
      for (int64_t j = 0; j < std::min<int64_t>(64, count - i); ++j)
        values[i + j] ^= static_cast<uint16_t>((signs >> j & 1) << 15);
    }
    return table;
  };
  std::vector<std::vector<DescribedMatrix::Source>> sources(1);
  sources[0].push_back(std::move(source));
  return DescribedMatrix(rows->shape(), bf16, std::move(sources), rows);
}

std::vector<float> ones(int64_t count) {
  return std::vector<float>(count, 1.0f);
}

Rotary rotary(int64_t dim, double theta) {
  Rotary rotary;
  for (int64_t i = 0; i < dim / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(dim);
    rotary.frequencies.push_back(static_cast<float>(std::pow(theta, exponent)));
  }
  return rotary;
}

AttentionDescription grouped_query(const ModelShape& shape, int64_t hidden_size, int64_t layer,
                                   const Scheme& scheme, uint64_t seed) {
  GroupedQuerySpec spec;
  spec.num_heads = shape.num_heads;
  spec.num_kv_heads = shape.num_kv_heads;
  spec.head_dim = shape.head_dim;
  spec.window = layer % 2 == 0 ? shape.window : 0;
  spec.rotary = rotary(
      static_cast<int64_t>(shape.partial_rotary_factor * static_cast<double>(shape.head_dim)),
      shape.rope_theta);
  if (shape.delta.interval > 0) spec.output_gate = OutputGate::kInQueries;
  const int64_t norms = shape.head_norms ? shape.head_dim : 0,
                gates = shape.delta.interval > 0 ? shape.num_heads : 0,
                heads = shape.num_heads + gates + 2 * shape.num_kv_heads;
  return GroupedQueryDescription{
      std::move(spec),
      ones(norms),
      ones(norms),
      ones(shape.sinks ? shape.num_heads : 0),
      random_linear(heads * shape.head_dim, hidden_size, scheme, seed, shape.biases),
      random_linear(hidden_size, shape.num_heads * shape.head_dim, scheme, seed + 1, shape.biases)};
}

// In 16 bits, as in published quantized files.
IndexerDescription indexer(const LatentSpec& spec, int64_t hidden_size, uint64_t seed) {
  const IndexerSpec& sizes = spec.indexer;
  const Scheme bf16{kBF16Weight, {}};
  std::vector<float> norm = ones(sizes.head_dim);
  norm.resize(static_cast<size_t>(2 * sizes.head_dim));  // no bias
  return {.k_norm = std::move(norm),
          .q = random_linear(sizes.num_heads * sizes.head_dim, spec.q_rank, bf16, seed),
          .k = random_linear(sizes.head_dim, hidden_size, bf16, seed + 1),
          .weights = random_linear(sizes.num_heads, hidden_size, bf16, seed + 2)};
}

AttentionDescription latent(const ModelShape& shape, int64_t hidden_size, int64_t layer,
                            const Scheme& scheme, uint64_t seed) {
  const LatentShape& sizes = shape.latent;
  LatentSpec spec;
  spec.num_heads = shape.num_heads;
  spec.q_rank = sizes.q_rank;
  spec.kv_rank = sizes.kv_rank;
  spec.nope_dim = sizes.nope_dim;
  spec.rope_dim = sizes.rope_dim;
  spec.value_dim = sizes.value_dim;
  spec.scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim()));
  spec.rotary = rotary(sizes.rope_dim, shape.rope_theta);
  spec.rotary.interleaved = true;
  spec.indexer = sizes.indexer;
  spec.indexer.shared = spec.indexer.top_k > 0 && layer % sizes.indexer_every != 0;
  std::optional<IndexerDescription> own;
  if (spec.indexer.top_k > 0 && !spec.indexer.shared) own = indexer(spec, hidden_size, seed + 11);
  const int64_t q_rows = shape.num_heads * spec.head_dim(),
                kv_rows = shape.num_heads * (sizes.nope_dim + sizes.value_dim);
  return LatentDescription{
      std::move(spec),
      ones(sizes.q_rank),
      ones(sizes.kv_rank),
      random_linear(sizes.q_rank, hidden_size, scheme, seed),
      random_linear(q_rows, sizes.q_rank, scheme, seed + 1),
      random_linear(sizes.kv_rank + sizes.rope_dim, hidden_size, scheme, seed + 2),
      random_linear(kv_rows, sizes.kv_rank, scheme, seed + 3),
      random_linear(hidden_size, shape.num_heads * sizes.value_dim, scheme, seed + 4),
      std::move(own)};
}

// The rows of b and a stay in 16 bits, as in published quantized files.
AttentionDescription gated_delta(const DeltaShape& shape, int64_t hidden_size, const Scheme& scheme,
                                 uint64_t seed) {
  GatedDeltaSpec spec;
  spec.num_key_heads = shape.num_key_heads;
  spec.num_value_heads = shape.num_value_heads;
  spec.key_dim = shape.key_dim;
  spec.value_dim = shape.value_dim;
  spec.kernel = shape.kernel;
  spec.by_key_head = shape.by_key_head;
  const auto heads = static_cast<size_t>(shape.num_value_heads);
  return GatedDeltaDescription{
      spec,
      std::vector<float>(static_cast<size_t>(spec.mixed() * spec.kernel), 0.3f),
      std::vector<float>(heads, -1.0f),
      std::vector<float>(heads, -3.0f),  // a decay near 1, so that all tokens matter
      ones(spec.value_dim),
      random_linear(spec.mixed() + spec.values(), hidden_size, scheme, seed),
      random_linear(2 * spec.num_value_heads, hidden_size, {kBF16Weight, {}}, seed + 1),
      random_linear(hidden_size, spec.values(), scheme, seed + 2)};
}

AttentionDescription attention(const ModelShape& shape, int64_t hidden_size, int64_t layer,
                               const Scheme& scheme, uint64_t seed) {
  if (shape.latent.kv_rank > 0) return latent(shape, hidden_size, layer, scheme, seed);
  if (shape.delta.interval > 0 && (layer + 1) % shape.delta.interval != 0)
    return gated_delta(shape.delta, hidden_size, scheme, seed);
  return grouped_query(shape, hidden_size, layer, scheme, seed);
}

LayerSpec shared_expert(const LayerSpec& experts, int64_t size) {
  LayerSpec shared = experts;
  shared.num_experts = shared.top_k = 1;
  shared.intermediate_size = size;
  shared.routing = {};
  return shared;
}

// Keeps attention in 16 bits where the published file does so beside 4-bit experts (GPT-OSS).
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
  return Error{ErrorKind::kInvalidArgument, "", "model_shape", "one of " + join(names),
               str("it is '", name, "'")};
}

Result<RandomModel> random_model(const ModelShape& shape, const RandomModelOptions& weights) {
  const auto& [scheme, output, num_layers, most_bytes] = weights;
  MORACLE_TRY(const LayerShape layer_shape, find_shape(shape.name));
  const Scheme linears = attention_scheme(scheme);
  LayerSpec experts = layer_of(layer_shape, scheme);
  experts.routing.renormalize = shape.renormalize;
  experts.routing.score = shape.score;
  const LayerSpec shared = shared_expert(experts, shape.shared_size);
  const int64_t hidden = experts.hidden_size, table = shape.vocab_size * hidden * 2;
  const int64_t layer_bytes = experts.num_experts * expert_bytes(experts) +
                              (shape.shared_size > 0 ? expert_bytes(shared) : 0);
  // Counts the embedding and the output, and the output once more while it is packed.
  const int64_t bytes = num_layers * layer_bytes + 2 * table;
  if (bytes + table > most_bytes) {
    return Error{ErrorKind::kOutOfMemory, "", "num_layers",
                 str(bytes + table, " bytes for ", num_layers, " layers"),
                 str("the limit is ", most_bytes, " bytes, so that half of the memory stays free")};
  }
  Description description{
      {hidden, shape.vocab_size, shape.max_context, 1e-6f, experts.activation.function},
      random_embedding(shape.vocab_size, hidden),
      {},
      ones(hidden),
      random_linear(shape.vocab_size, hidden, output, 2)};
  for (int64_t l = 0; l < num_layers; ++l) {
    const auto seed = static_cast<uint64_t>(16 * (l + 1));
    const std::string layer = str("model.layers.", l, ".mlp.");
    experts.name = layer + "experts";
    DescribedMatrix router = random_router(experts, shape.biases, seed + 5);
    LayerDescription described{
        ones(hidden), ones(hidden), attention(shape, hidden, l, linears, seed),
        RouterDescription{std::move(router), {}}, random_layer(experts, seed + 6)};
    if (shape.shared_size > 0) {
      LayerSpec own = shared;
      own.name = layer + "shared_experts";
      described.shared = SharedExpertDescription{random_layer(own, seed + 8), {}};
      if (shape.shared_gate)
        described.shared->gate = random_linear(1, hidden, {kBF16Weight, {}}, seed + 10);
    }
    description.layers.push_back(std::move(described));
  }
  return RandomModel{std::move(description), bytes};
}

}  // namespace moracle::bench
