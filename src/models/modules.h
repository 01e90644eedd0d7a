// The modules of a Description in the order of choosing, loading and showing. All code that walks a
// model uses this order.
#pragma once

#include <string>
#include <type_traits>

#include "base/try.h"
#include "models/description.h"
#include "moracle/oracle.h"

namespace moracle {

struct ModuleLabel {
  std::string part;              ///< "attention", "router", "experts", "mlp", "output", …
  std::string detail;            ///< "qkv"; empty if the part is one module
  std::optional<int64_t> layer;  ///< empty outside the layers
  /// "attention qkv"
  std::string name() const { return detail.empty() ? part : part + " " + detail; }
};

/// Name of a module in messages: the experts' prefix, or the first linear layer of the matrix.
/// Empty for a matrix in memory.
inline std::string module_name(const DescribedMatrix& matrix) {
  const std::vector<std::string> modules = matrix.modules();
  return modules.empty() ? "" : modules.front();
}
inline std::string module_name(const DescribedWeights& weights) {
  return weights.spec.name;
}

/// Names that patterns of `backend` match. The output is "lm_head", tied or not.
inline ModuleNames module_names(const ModuleLabel& label, const DescribedMatrix& matrix) {
  return {label.part == "output" ? "lm_head" : module_name(matrix), matrix.modules()};
}
inline ModuleNames module_names(const ModuleLabel&, const DescribedWeights& weights) {
  ModuleNames names{weights.spec.name, weights.w13.modules()};
  for (std::string& module : weights.w2.modules()) names.members.push_back(std::move(module));
  return names;
}

template <class T, class Visit>
Status visit_indexer(T& indexer, int64_t layer, Visit& visit) {
  MORACLE_CHECK(visit(ModuleLabel{"indexer", "q", layer}, indexer.q));
  MORACLE_CHECK(visit(ModuleLabel{"indexer", "k", layer}, indexer.k));
  if (indexer.pool_gates)
    MORACLE_CHECK(visit(ModuleLabel{"indexer", "pool gates", layer}, *indexer.pool_gates));
  if (!indexer.weights) return {};
  return visit(ModuleLabel{"indexer", "weights", layer}, *indexer.weights);
}

template <class T, class Visit>
Status visit_residual(T& residual, std::optional<int64_t> layer, Visit& visit) {
  if (!residual) return {};
  MORACLE_CHECK(visit(ModuleLabel{"residual", "down", layer}, residual->down));
  MORACLE_CHECK(visit(ModuleLabel{"residual", "up", layer}, residual->up));
  if (!residual->inject) return {};
  return visit(ModuleLabel{"residual", "inject", layer}, *residual->inject);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, GroupedQueryDescription> Status
visit_attention(T& attention, int64_t layer, Visit& visit) {
  MORACLE_CHECK(visit(ModuleLabel{"attention", "qkv", layer}, attention.qkv));
  if (attention.indexer) MORACLE_CHECK(visit_indexer(*attention.indexer, layer, visit));
  return visit(ModuleLabel{"attention", "output", layer}, attention.o);
}
template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, LatentDescription> Status
visit_attention(T& attention, int64_t layer, Visit& visit) {
  if (attention.q_a) MORACLE_CHECK(visit(ModuleLabel{"attention", "q_a", layer}, *attention.q_a));
  MORACLE_CHECK(visit(ModuleLabel{"attention", attention.q_a ? "q_b" : "q", layer}, attention.q));
  MORACLE_CHECK(visit(ModuleLabel{"attention", "kv_a", layer}, attention.kv_a));
  MORACLE_CHECK(visit(ModuleLabel{"attention", "kv_b", layer}, attention.kv_b));
  if (attention.indexer) MORACLE_CHECK(visit_indexer(*attention.indexer, layer, visit));
  if (attention.gate)
    MORACLE_CHECK(visit(ModuleLabel{"attention", "gate", layer}, *attention.gate));
  return visit(ModuleLabel{"attention", "output", layer}, attention.o);
}
template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, GatedDeltaDescription> Status
visit_attention(T& attention, int64_t layer, Visit& visit) {
  MORACLE_CHECK(visit(ModuleLabel{"linear attention", "qkvz", layer}, attention.qkvz));
  MORACLE_CHECK(visit(ModuleLabel{"linear attention", "ba", layer}, attention.ba));
  return visit(ModuleLabel{"linear attention", "output", layer}, attention.o);
}
template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, ShortConvolutionDescription> Status
visit_attention(T& attention, int64_t layer, Visit& visit) {
  MORACLE_CHECK(visit(ModuleLabel{"short convolution", "input", layer}, attention.bcx));
  return visit(ModuleLabel{"short convolution", "output", layer}, attention.o);
}
template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, Mamba2Description> Status
visit_attention(T& attention, int64_t layer, Visit& visit) {
  MORACLE_CHECK(visit(ModuleLabel{"mamba", "input", layer}, attention.in));
  return visit(ModuleLabel{"mamba", "output", layer}, attention.o);
}
template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, NoAttentionDescription> Status
visit_attention(T&, int64_t, Visit&) {
  return {};
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, KimiDeltaDescription> Status
visit_attention(T& attention, int64_t layer, Visit& visit) {
  const auto label = [layer](const char* detail) {
    return ModuleLabel{"linear attention", detail, layer};
  };
  MORACLE_CHECK(visit(label("qkv"), attention.qkv));
  MORACLE_CHECK(visit(label("strength"), attention.strength));
  if (attention.decay_a) MORACLE_CHECK(visit(label("decay_a"), *attention.decay_a));
  MORACLE_CHECK(visit(label(attention.decay_a ? "decay_b" : "decay"), attention.decay));
  if (attention.gate_a) MORACLE_CHECK(visit(label("gate_a"), *attention.gate_a));
  MORACLE_CHECK(visit(label(attention.gate_a ? "gate_b" : "gate"), attention.gate));
  return visit(label("output"), attention.o);
}
template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, LightningDescription> Status
visit_attention(T& attention, int64_t layer, Visit& visit) {
  MORACLE_CHECK(visit(ModuleLabel{"linear attention", "qkv", layer}, attention.qkv));
  MORACLE_CHECK(visit(ModuleLabel{"linear attention", "gate", layer}, attention.gate));
  return visit(ModuleLabel{"linear attention", "output", layer}, attention.o);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, CompressedDescription> Status
visit_attention(T& attention, int64_t layer, Visit& visit) {
  const auto label = [layer](const char* detail, const char* part = "attention") {
    return ModuleLabel{part, detail, layer};
  };
  MORACLE_CHECK(visit(label("q_a"), attention.q_a));
  MORACLE_CHECK(visit(label("q_b"), attention.q_b));
  MORACLE_CHECK(visit(label("kv"), attention.kv));
  if (attention.compressor) MORACLE_CHECK(visit(label("compressor"), attention.compressor->rows));
  if (attention.index_compressor) {
    MORACLE_CHECK(visit(label("compressor", "indexer"), attention.index_compressor->rows));
    MORACLE_CHECK(visit(label("q", "indexer"), *attention.index_q));
    MORACLE_CHECK(visit(label("weights", "indexer"), *attention.index_weights));
  }
  for (auto& group : attention.o_a) MORACLE_CHECK(visit(label("output_a"), group));
  return visit(label("output_b"), attention.o_b);
}

/// Calls `visit(label, module)` for every DescribedMatrix and DescribedWeights of a Description,
/// const or not. The first error ends the walk.
template <class D, class Visit>
requires std::is_same_v<std::remove_const_t<D>, Description> Status visit_modules(D& description,
                                                                                  Visit&& visit) {
  if (description.join) MORACLE_CHECK(visit(ModuleLabel{"join", "", {}}, description.join->matrix));
  for (size_t l = 0; l < description.layers.size(); ++l) {
    auto& layer = description.layers[l];
    const auto index = static_cast<int64_t>(l);
    if (layer.ngrams) {
      MORACLE_CHECK(visit(ModuleLabel{"n-grams", "key", index}, layer.ngrams->key));
      MORACLE_CHECK(visit(ModuleLabel{"n-grams", "value", index}, layer.ngrams->value));
    }
    MORACLE_CHECK(visit_residual(layer.attention_residual, index, visit));
    MORACLE_CHECK(visit_residual(layer.mlp_residual, index, visit));
    MORACLE_CHECK(
        std::visit([&](auto& attention) { return visit_attention(attention, index, visit); },
                   layer.attention));
    if (layer.latent)
      MORACLE_CHECK(visit(ModuleLabel{"latent", "down", index}, layer.latent->down));
    if (layer.router) MORACLE_CHECK(visit(ModuleLabel{"router", "", index}, layer.router->weights));
    if (layer.mlp)
      MORACLE_CHECK(visit(ModuleLabel{layer.router ? "experts" : "mlp", "", index}, *layer.mlp));
    if (layer.latent) MORACLE_CHECK(visit(ModuleLabel{"latent", "up", index}, layer.latent->up));
    if (!layer.shared) continue;
    if (layer.shared->gate)
      MORACLE_CHECK(visit(ModuleLabel{"shared expert", "gate", index}, *layer.shared->gate));
    MORACLE_CHECK(visit(ModuleLabel{"shared expert", "", index}, layer.shared->mlp));
  }
  MORACLE_CHECK(visit_residual(description.final_residual, {}, visit));
  return visit(ModuleLabel{"output", "", {}}, description.output);
}

}  // namespace moracle
