#include "models/families/shared_moe.h"

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/gguf/gguf_drafts.h"

namespace moracle {

Result<SharedMoeSpec> read_shared_moe(const Config& config) {
  SharedMoeSpec spec;
  MORACLE_TRY(spec.dense_layers, config.integer({"first_k_dense_replace"}, 0));
  MORACLE_TRY(spec.sparse_step, config.integer_or(1, {"moe_layer_freq"}, 1));
  MORACLE_TRY(spec.dense_intermediate, config.integer({"intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(const int64_t num_shared,
              config.integer_or(0, {"n_shared_experts", "num_shared_experts"}, 0, 1 << 10));
  MORACLE_TRY(const int64_t one, config.integer({"moe_intermediate_size"}, 1, 1 << 20));
  spec.shared_intermediate = num_shared * one;
  return spec;
}

Status read_mlp_layer_types(const Config& config, int64_t num_layers, SharedMoeSpec& spec) {
  MORACLE_TRY(const std::vector<std::string> types, config.texts({"mlp_layer_types"}));
  if (types.empty()) return {};
  if (static_cast<int64_t>(types.size()) != num_layers) {
    return config.wrong({"mlp_layer_types"}, str("one for each of ", num_layers, " layers"),
                        str("it has ", types.size()));
  }
  spec.dense.clear();
  for (const std::string& type : types) {
    if (type != "dense" && type != "sparse")
      return config.unsupported({"mlp_layer_types"}, "dense and sparse", "it has " + type);
    spec.dense.push_back(type == "dense");
  }
  return {};
}

Status require_keys(const Config& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (!config.has({key})) return config.wrong({key}, "a number", "it is missing");
  }
  return {};
}

Status require_score(const Config& config, const std::string& score) {
  MORACLE_TRY(const std::string function, config.text_or(score, {"scoring_func"}));
  if (function == score) return {};
  return config.unsupported({"scoring_func"}, score, "it is " + function);
}

Result<LayerDescription> describe_shared_moe_layer(const Checkpoint& checkpoint,
                                                   const DecoderSpec& decoder,
                                                   const SharedMoeSpec& spec, int64_t layer,
                                                   AttentionDescription&& attention) {
  const std::string mlp = layer_prefix(checkpoint, layer) + "mlp";
  if (spec.is_dense(layer)) {
    MORACLE_TRY(DescribedWeights weights,
                describe_dense_mlp(checkpoint, mlp, decoder, spec.dense_intermediate));
    return describe_decoder_layer(checkpoint, decoder, layer, std::move(attention),
                                  std::move(weights));
  }
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  // A file without a bias that the architecture has is incomplete.
  experts.spec.routing.correction_bias = spec.correction_bias;
  const std::string bias =
      spec.bias_name.empty() ? "" : of_layer(checkpoint.state(), spec.bias_name, layer);
  MORACLE_TRY(RouterDescription router,
              describe_router(checkpoint, mlp + ".gate", experts.spec, bias));
  std::optional<SharedExpertDescription> shared;
  if (spec.shared_intermediate > 0) {
    MORACLE_TRY(shared, describe_shared_expert(checkpoint, mlp + ".shared_experts", "", decoder,
                                               spec.shared_intermediate));
  }
  return describe_decoder_layer(checkpoint, decoder, layer, std::move(attention),
                                std::move(experts), std::move(router), std::move(shared));
}

Status write_glm_moe_gguf(GgufDraft& draft) {
  MORACLE_CHECK(put_sigmoid_gating(draft));
  return put_partial_rotary(draft);
}

}  // namespace moracle
