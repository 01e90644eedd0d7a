#include "models/families/latent/sparse_indexer.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"

namespace moracle {
namespace sparse_indexer {
namespace {

// One letter a layer: F for "full", S for "shared".
Result<std::vector<std::string>> spelled_out(const Config& config, const std::string& pattern) {
  std::vector<std::string> types;
  for (const char letter : pattern) {
    if (letter != 'F' && letter != 'S')
      return config.wrong({"index_topk_pattern"}, "letters F and S", "it is " + pattern);
    types.emplace_back(letter == 'F' ? "full" : "shared");
  }
  return types;
}

// indexer_types, else index_topk_pattern; empty: neither is there.
Result<std::vector<std::string>> named_types(const Config& config) {
  for (const char* key : {"indexer_types", "index_topk_pattern"}) {
    const nlohmann::json* const types = config.find({key});
    if (types == nullptr) continue;
    if (types->is_string() && std::string_view(key) == "index_topk_pattern")
      return spelled_out(config, types->get<std::string>());
    return config.texts({key});
  }
  return std::vector<std::string>();
}

Result<DescribedMatrix> describe_unbiased(const Checkpoint& checkpoint, const std::string& name,
                                          int64_t rows, int64_t cols) {
  MORACLE_TRY(DescribedMatrix matrix, describe_linear(checkpoint, {name}, {rows}, cols));
  if (!matrix.shape().bias) return matrix;
  return checkpoint.state().tensors.wrong(name + ".bias", "not to be there",
                                          "the architecture has no such bias");
}

}  // namespace
}  // namespace sparse_indexer

Result<std::vector<bool>> read_shared_selections(const Config& config, int64_t num_layers) {
  std::vector<bool> shared(static_cast<size_t>(num_layers));
  MORACLE_TRY(const std::vector<std::string> types, sparse_indexer::named_types(config));
  if (types.empty()) {
    // Every `every`-th layer from `first` on has an indexer, and all layers before.
    MORACLE_TRY(const int64_t every, config.integer_or(1, {"index_topk_freq"}));
    MORACLE_TRY(const int64_t first, config.integer_or(2, {"index_skip_topk_offset"}));
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      shared[static_cast<size_t>(layer)] =
          std::max<int64_t>(layer - first + 1, 0) % std::max<int64_t>(every, 1) != 0;
    }
  } else {
    const Config::Keys key = {config.has({"indexer_types"}) ? "indexer_types"
                                                            : "index_topk_pattern"};
    if (static_cast<int64_t>(types.size()) != num_layers)
      return config.wrong(key, str("one for each of ", num_layers, " layers"),
                          str("it has ", types.size()));
    for (size_t layer = 0; layer < types.size(); ++layer) {
      if (types[layer] != "full" && types[layer] != "shared")
        return config.unsupported(key, "full and shared", "it has " + types[layer]);
      shared[layer] = types[layer] == "shared";
    }
  }
  if (!shared[0]) return shared;
  return config.wrong({"indexer_types"}, "full in the first layer, which has no earlier one",
                      "it is shared");
}

Result<IndexerDescription> describe_indexer(const Checkpoint& checkpoint, const std::string& prefix,
                                            int64_t hidden_size, const LatentSpec& attention) {
  const IndexerSpec& spec = attention.indexer;
  MORACLE_TRY(DescribedMatrix q,
              sparse_indexer::describe_unbiased(checkpoint, prefix + "wq_b",
                                                spec.num_heads * spec.head_dim, attention.q_rank));
  MORACLE_TRY(DescribedMatrix k, sparse_indexer::describe_unbiased(checkpoint, prefix + "wk",
                                                                   spec.head_dim, hidden_size));
  MORACLE_TRY(DescribedMatrix weights,
              sparse_indexer::describe_unbiased(checkpoint, prefix + "weights_proj", spec.num_heads,
                                                hidden_size));
  MORACLE_TRY(std::vector<float> norm, checkpoint.vector(prefix + "k_norm.weight", spec.head_dim));
  MORACLE_TRY(const std::vector<float> bias,
              checkpoint.vector(prefix + "k_norm.bias", spec.head_dim));
  norm.insert(norm.end(), bias.begin(), bias.end());
  return IndexerDescription{.k_norm = std::move(norm),
                            .q = std::move(q),
                            .k = std::move(k),
                            .weights = std::move(weights)};
}

}  // namespace moracle
