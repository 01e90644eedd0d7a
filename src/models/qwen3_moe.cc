// Qwen3-MoE: RMSNorm on q and k per head, rotary embedding, grouped-query attention, experts with
// softmax routing; layers in mlp_only_layers, or off decoder_sparse_step, are dense.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/description.h"

namespace moracle {
namespace {

Error unsupported(const Config& config, Config::Keys keys, std::string need, std::string fact) {
  Error error = config.wrong(keys, std::move(need), std::move(fact));
  error.kind = ErrorKind::kUnsupported;
  return error;
}

// Two dialects: transformers 5 nests the rotary settings in rope_parameters.
Status read_rope(const Config& config, DecoderSpec& spec) {
  MORACLE_TRY(spec.rope_theta, config.number_or(10'000, {"rope_theta"}));
  MORACLE_TRY(const auto rope, config.object({"rope_parameters", "rope_scaling"}));
  if (!rope) return {};
  MORACLE_TRY(spec.rope_theta, rope->number_or(spec.rope_theta, {"rope_theta"}));
  MORACLE_TRY(const std::string type, rope->text_or("default", {"rope_type", "type"}));
  if (type != "default") return unsupported(*rope, {"rope_type"}, "default", "it is " + type);
  return {};
}

Result<DecoderSpec> read_spec(const Config& config) {
  DecoderSpec spec;
  MORACLE_TRY(spec.hidden_size, config.integer({"hidden_size"}, 1, 1 << 20));
  MORACLE_TRY(spec.num_heads, config.integer({"num_attention_heads"}, 1, 1 << 16));
  MORACLE_TRY(spec.num_kv_heads,
              config.integer_or(spec.num_heads, {"num_key_value_heads"}, 1, spec.num_heads));
  MORACLE_TRY(spec.head_dim,
              config.integer_or(spec.hidden_size / spec.num_heads, {"head_dim"}, 2, 1 << 16));
  MORACLE_TRY(spec.vocab_size, config.integer({"vocab_size"}, 1));
  MORACLE_TRY(spec.max_context, config.integer_or(32'768, {"max_position_embeddings"}, 1));
  MORACLE_TRY(const double epsilon, config.number_or(1e-6, {"rms_norm_eps"}));
  if (!(epsilon >= 0 && epsilon < 1)) {
    return config.wrong({"rms_norm_eps"}, "a number from 0 to 1", str("it is ", epsilon));
  }
  spec.norm_epsilon = static_cast<float>(epsilon);
  if (spec.num_heads % spec.num_kv_heads != 0) {
    return config.wrong({"num_key_value_heads"}, str("a divisor of ", spec.num_heads, " heads"),
                        str("it is ", spec.num_kv_heads));
  }
  if (spec.head_dim % 2 != 0) {
    return config.wrong({"head_dim"}, "an even number", str("it is ", spec.head_dim));
  }
  MORACLE_CHECK(read_rope(config, spec));
  if (!(spec.rope_theta >= 1)) {
    return config.wrong({"rope_theta"}, "a number of at least 1", str("it is ", spec.rope_theta));
  }
  MORACLE_TRY(const bool sliding, config.boolean_or(false, {"use_sliding_window"}));
  if (sliding) return unsupported(config, {"use_sliding_window"}, "false", "it is true");
  return spec;
}

// Each part by itself: stacked parts may not make up for each other's rows.
Status check_size(const Checkpoint& checkpoint, const DescribedMatrix& matrix,
                  const std::vector<int64_t>& rows, int64_t k) {
  if (matrix.part_rows() == rows && matrix.shape().k == k) return {};
  const std::string first = matrix.tensors()[0];
  return Error{ErrorKind::kBadFile, checkpoint.state().tensors.file_of(first),
               "tensor '" + first + "'",
               str(join(rows, " + "), " rows of ", k, " columns (from config.json)"),
               str("there are ", join(matrix.part_rows(), " + "), " of ", matrix.shape().k)};
}

Result<DescribedMatrix> sized(const Checkpoint& checkpoint, const std::vector<std::string>& modules,
                              const std::vector<int64_t>& rows, int64_t k) {
  MORACLE_TRY(DescribedMatrix matrix, checkpoint.linear(modules));
  MORACLE_CHECK(check_size(checkpoint, matrix, rows, k));
  return matrix;
}

// An ordinary MLP as one expert.
Result<DescribedWeights> dense_mlp(const Checkpoint& checkpoint, const std::string& mlp,
                                   const DecoderSpec& spec, int64_t intermediate) {
  MORACLE_TRY(DescribedMatrix w13, sized(checkpoint, {mlp + ".gate_proj", mlp + ".up_proj"},
                                         {intermediate, intermediate}, spec.hidden_size));
  MORACLE_TRY(DescribedMatrix w2,
              sized(checkpoint, {mlp + ".down_proj"}, {spec.hidden_size}, intermediate));
  LayerSpec layer{.name = mlp, .hidden_size = spec.hidden_size, .intermediate_size = intermediate};
  layer.scheme = w13.scheme();
  layer.group_index = w13.shape().group_index || w2.shape().group_index;
  layer.bias = w13.shape().bias || w2.shape().bias;
  return DescribedWeights{std::move(layer), std::move(w13), std::move(w2)};
}

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
              sized(checkpoint, {attention + "q_proj", attention + "k_proj", attention + "v_proj"},
                    {q_size, kv_size, kv_size}, spec.hidden_size));
  MORACLE_TRY(DescribedMatrix o,
              sized(checkpoint, {attention + "o_proj"}, {spec.hidden_size}, q_size));
  std::optional<DescribedMatrix> router;
  Result<DescribedWeights> experts = Error{};
  if (dense) {
    experts = dense_mlp(checkpoint, mlp, spec, dense_intermediate);
  } else {
    experts = checkpoint.moe_layer(layer);
    if (experts) {
      MORACLE_TRY(router, checkpoint.router(mlp + ".gate"));
      MORACLE_CHECK(check_size(checkpoint, *router, {experts->spec.num_experts}, spec.hidden_size));
    }
  }
  if (!experts) return experts.error();
  return LayerDescription{std::move(input_norm), std::move(post_norm), std::move(q_norm),
                          std::move(k_norm),     std::move(qkv),       std::move(o),
                          std::move(router),     *std::move(experts)};
}

}  // namespace

Result<Description> describe_qwen3_moe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec spec, read_spec(config));
  MORACLE_TRY(const std::vector<int64_t> dense_layers, config.integers({"mlp_only_layers"}));
  MORACLE_TRY(const int64_t sparse_step, config.integer_or(1, {"decoder_sparse_step"}, 1));
  MORACLE_TRY(const bool tied, config.boolean_or(false, {"tie_word_embeddings"}));

  const std::string embedding_name = "model.embed_tokens.weight";
  MORACLE_TRY(const TensorView embedding, checkpoint.tensor(embedding_name));
  const std::vector<int64_t> embedding_shape = {spec.vocab_size, spec.hidden_size};
  const bool is_float = embedding.dtype == DType::kBF16 || embedding.dtype == DType::kF16 ||
                        embedding.dtype == DType::kF32;
  if (!is_float || embedding.shape != embedding_shape) {
    return checkpoint.state().tensors.wrong(embedding_name,
                                            str("bf16, f16 or f32 [", join(embedding_shape), "]"),
                                            "it is " + to_string(embedding));
  }
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
              sized(checkpoint, {own_output ? "lm_head" : "model.embed_tokens"}, {spec.vocab_size},
                    spec.hidden_size));
  return Description{
      spec, embedding, std::move(layers), std::move(final_norm), std::move(output), !own_output};
}

}  // namespace moracle
