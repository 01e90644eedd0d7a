#include "models/families/latent/latent_decoder.h"

#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/attention/rotary.h"
#include "models/gguf/gguf_drafts.h"

namespace moracle {

Result<LatentSpec> read_latent_sizes(const Config& config, bool rotates) {
  LatentSpec spec;
  constexpr int64_t kMost = 1 << 16;
  MORACLE_TRY(spec.num_heads, config.integer({"num_attention_heads"}, 1, kMost));
  MORACLE_TRY(spec.q_rank, config.integer_or(0, {"q_lora_rank"}, 1, kMost));
  MORACLE_TRY(spec.kv_rank, config.integer({"kv_lora_rank"}, 1, kMost));
  MORACLE_TRY(spec.nope_dim, config.integer({"qk_nope_head_dim"}, 1, kMost));
  MORACLE_TRY(spec.rope_dim, config.integer({"qk_rope_head_dim"}, rotates ? 2 : 0, kMost));
  if (!rotates && spec.rope_dim != 0)
    return config.unsupported({"qk_rope_head_dim"}, "0: no RoPE", str("it is ", spec.rope_dim));
  MORACLE_TRY(spec.value_dim, config.integer({"v_head_dim"}, 1, kMost));
  if (spec.rope_dim % 2 != 0)
    return config.wrong({"qk_rope_head_dim"}, "an even number", str("it is ", spec.rope_dim));
  spec.norm_epsilon = 1e-6f;  // for the latent vectors; rms_norm_eps applies to the other norms
  return spec;
}

Status set_rotary(const Config& config, RotaryAndScale&& read, LatentSpec& spec) {
  spec.rotary = std::move(read.rotary);
  MORACLE_TRY(spec.rotary.interleaved, config.boolean_or(true, {"rope_interleave"}));
  spec.scale =
      static_cast<float>(read.score_scale / std::sqrt(static_cast<double>(spec.head_dim())));
  return {};
}

Result<LatentSpec> read_latent(const Config& config) {
  MORACLE_TRY(LatentSpec spec, read_latent_sizes(config));
  MORACLE_TRY(RotaryAndScale read, read_rotary(config, spec.rope_dim));
  MORACLE_CHECK(set_rotary(config, std::move(read), spec));
  return spec;
}

Result<LatentDescription> describe_latent(const Checkpoint& checkpoint, const std::string& prefix,
                                          const DecoderSpec& spec, const LatentSpec& a, bool biased,
                                          const char* o_name, const char* gate_name) {
  const int64_t q_rows = a.num_heads * a.head_dim();
  // The biases of config.json apply to layers that read or write the hidden state.
  const auto outer = biased ? describe_biased_linear : describe_linear;
  std::vector<float> q_norm;
  std::optional<DescribedMatrix> q_a;
  if (a.q_rank > 0) {
    MORACLE_TRY(q_a, outer(checkpoint, {prefix + "q_a_proj"}, {a.q_rank}, spec.hidden_size));
    MORACLE_TRY(q_norm, checkpoint.vector(prefix + "q_a_layernorm.weight", a.q_rank));
  }
  MORACLE_TRY(DescribedMatrix q,
              describe_linear(checkpoint, {prefix + (q_a ? "q_b_proj" : "q_proj")}, {q_rows},
                              q_a ? a.q_rank : spec.hidden_size));
  MORACLE_TRY(DescribedMatrix kv_a, outer(checkpoint, {prefix + "kv_a_proj_with_mqa"},
                                          {a.kv_rank + a.rope_dim}, spec.hidden_size));
  MORACLE_TRY(auto kv_norm, checkpoint.vector(prefix + "kv_a_layernorm.weight", a.kv_rank));
  MORACLE_TRY(DescribedMatrix kv_b,
              describe_linear(checkpoint, {prefix + "kv_b_proj"},
                              {a.num_heads * (a.nope_dim + a.value_dim)}, a.kv_rank));
  MORACLE_TRY(DescribedMatrix o,
              outer(checkpoint, {prefix + o_name}, {spec.hidden_size}, a.num_heads * a.value_dim));
  std::optional<DescribedMatrix> gate;
  if (a.head_gate) {
    MORACLE_TRY(gate,
                describe_linear(checkpoint, {prefix + gate_name}, {a.num_heads}, spec.hidden_size));
  }
  return LatentDescription{a,
                           std::move(q_norm),
                           std::move(kv_norm),
                           std::move(q_a),
                           std::move(q),
                           std::move(kv_a),
                           std::move(kv_b),
                           std::move(o),
                           {},
                           std::move(gate)};
}

Result<Description> describe_latent_decoder(const Checkpoint& checkpoint,
                                            const DecoderSpec& decoder, const LatentSpec& attention,
                                            const SharedMoeSpec& moe) {
  MORACLE_TRY(const bool biased, checkpoint.state().config.boolean_or(false, {"attention_bias"}));
  const auto describe_layer = [&](int64_t layer) -> Result<LayerDescription> {
    const std::string prefix = layer_prefix(checkpoint, layer) + "self_attn.";
    MORACLE_TRY(LatentDescription described,
                describe_latent(checkpoint, prefix, decoder, attention, biased));
    return describe_shared_moe_layer(checkpoint, decoder, moe, layer, std::move(described));
  };
  return describe_decoder(checkpoint, decoder, describe_layer);
}

Status write_latent_gguf(GgufDraft& draft) {
  MORACLE_CHECK(put_sigmoid_gating(draft));
  return put_latent(draft);
}

}  // namespace moracle
