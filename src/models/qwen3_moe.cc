// Qwen3-MoE: RMSNorm on q and k per head, rotary embedding, grouped-query attention, experts with
// softmax routing; layers in mlp_only_layers, or off decoder_sparse_step, are dense.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/decoder_parts.h"

namespace moracle {
namespace {

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                        int64_t layer, bool dense, int64_t dense_intermediate) {
  const std::string prefix = str("model.layers.", layer, ".");
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp";
  MORACLE_TRY(auto input_norm,
              checkpoint.vector(prefix + "input_layernorm.weight", spec.hidden_size));
  MORACLE_TRY(auto post_norm,
              checkpoint.vector(prefix + "post_attention_layernorm.weight", spec.hidden_size));
  MORACLE_TRY(auto q_norm, checkpoint.vector(attention + "q_norm.weight", spec.head_dim));
  MORACLE_TRY(auto k_norm, checkpoint.vector(attention + "k_norm.weight", spec.head_dim));
  const int64_t q_size = spec.num_heads * spec.head_dim,
                kv_size = spec.num_kv_heads * spec.head_dim;
  MORACLE_TRY(DescribedMatrix qkv,
              describe_linear(checkpoint,
                              {attention + "q_proj", attention + "k_proj", attention + "v_proj"},
                              {q_size, kv_size, kv_size}, spec.hidden_size));
  MORACLE_TRY(DescribedMatrix o,
              describe_linear(checkpoint, {attention + "o_proj"}, {spec.hidden_size}, q_size));
  std::optional<DescribedMatrix> router;
  Result<DescribedWeights> experts =
      dense ? describe_dense_mlp(checkpoint, mlp, spec, dense_intermediate)
            : checkpoint.moe_layer(layer);
  if (!experts) return experts.error();
  if (!dense) {
    MORACLE_TRY(router, describe_router(checkpoint, mlp + ".gate", experts->spec));
  }
  return LayerDescription{std::move(input_norm), std::move(post_norm), std::move(q_norm),
                          std::move(k_norm),     std::move(qkv),       std::move(o),
                          std::move(router),     *std::move(experts)};
}

}  // namespace

Result<Description> describe_qwen3_moe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec spec, read_decoder_spec(config));
  MORACLE_TRY(const std::vector<int64_t> dense_layers, config.integers({"mlp_only_layers"}));
  MORACLE_TRY(const int64_t sparse_step, config.integer_or(1, {"decoder_sparse_step"}, 1));
  MORACLE_TRY(const bool tied, config.boolean_or(false, {"tie_word_embeddings"}));

  MORACLE_TRY(const TensorView embedding,
              describe_embedding(checkpoint, "model.embed_tokens.weight", spec));
  std::vector<LayerDescription> layers;
  for (int64_t layer = 0; layer < checkpoint.num_layers(); ++layer) {
    const bool dense =
        std::find(dense_layers.begin(), dense_layers.end(), layer) != dense_layers.end() ||
        (layer + 1) % sparse_step != 0;
    int64_t dense_intermediate = 0;
    if (dense) {
      MORACLE_TRY(dense_intermediate, config.integer({"intermediate_size"}, 1, 1 << 24));
    }
    MORACLE_TRY(LayerDescription described,
                describe_layer(checkpoint, spec, layer, dense, dense_intermediate));
    layers.push_back(std::move(described));
  }
  MORACLE_TRY(auto final_norm, checkpoint.vector("model.norm.weight", spec.hidden_size));
  // Tied files hold no lm_head; one that is there all the same counts, as in transformers it would
  // not differ from the embedding.
  const bool own_output = !tied || checkpoint.has_tensor("lm_head.weight");
  MORACLE_TRY(DescribedMatrix output,
              describe_linear(checkpoint, {own_output ? "lm_head" : "model.embed_tokens"},
                              {spec.vocab_size}, spec.hidden_size));
  return Description{
      spec, embedding, std::move(layers), std::move(final_norm), std::move(output), !own_output};
}

}  // namespace moracle
