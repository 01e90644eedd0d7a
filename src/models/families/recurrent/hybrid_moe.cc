#include "models/families/recurrent/hybrid_moe.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/experts/matrix_share.h"
#include "checkpoint/state.h"

namespace moracle {
namespace {

Result<GatedDeltaSpec> read_delta(const Config& config, const DecoderSpec& decoder) {
  GatedDeltaSpec spec;
  spec.norm_epsilon = decoder.norm_epsilon;
  MORACLE_TRY(spec.num_key_heads, config.integer({"linear_num_key_heads"}, 1, 1 << 12));
  MORACLE_TRY(spec.num_value_heads, config.integer({"linear_num_value_heads"}, 1, 1 << 12));
  MORACLE_TRY(spec.key_dim, config.integer({"linear_key_head_dim"}, 1, 1024));
  MORACLE_TRY(spec.value_dim, config.integer({"linear_value_head_dim"}, 1, 1 << 14));
  MORACLE_TRY(spec.kernel, config.integer({"linear_conv_kernel_dim"}, 2, 16));
  if (spec.num_value_heads % spec.num_key_heads == 0) return spec;
  return config.wrong({"linear_num_value_heads"},
                      str("a multiple of ", spec.num_key_heads, " key heads"),
                      str("it is ", spec.num_value_heads));
}

Result<std::vector<bool>> read_layer_types(const Config& config, int64_t num_layers,
                                           const char* also) {
  MORACLE_TRY(const std::vector<std::string> types, config.texts({"layer_types"}));
  MORACLE_TRY(const int64_t interval, config.integer({"full_attention_interval"}, 1));
  std::vector<bool> is_delta;
  for (int64_t layer = 0; types.empty() && layer < num_layers; ++layer)
    is_delta.push_back((layer + 1) % interval != 0);
  for (const std::string& type : types) {
    if (type != "linear_attention" && type != "full_attention" && type != also) {
      return config.unsupported({"layer_types"}, "linear_attention and full_attention",
                                "it has " + type);
    }
    is_delta.push_back(type == "linear_attention");
  }
  if (static_cast<int64_t>(is_delta.size()) == num_layers) return is_delta;
  return config.wrong({"layer_types"}, str("one for each of ", num_layers, " layers"),
                      str("it has ", is_delta.size()));
}

Result<AttentionDescription> describe_delta(const Checkpoint& checkpoint, const std::string& prefix,
                                            const HybridMoe& spec, const DeltaModules& modules) {
  const GatedDeltaSpec& delta = spec.delta;
  const int64_t hidden = spec.decoder.hidden_size;
  const auto prefixed = [&](std::vector<std::string> names) {
    for (std::string& name : names) name = prefix + name;
    return names;
  };
  MORACLE_TRY(DescribedMatrix qkvz,
              describe_linear(checkpoint, prefixed(modules.qkvz), modules.qkvz_rows, hidden));
  MORACLE_TRY(DescribedMatrix ba,
              describe_linear(checkpoint, prefixed(modules.ba), modules.ba_rows, hidden));
  MORACLE_TRY(DescribedMatrix o,
              describe_linear(checkpoint, {prefix + "out_proj"}, {hidden}, delta.values()));
  MORACLE_TRY(const bool interleaved,
              checkpoint.state().config.boolean_or(false, {"linear_value_heads_interleaved"}));
  if (interleaved) {
    MORACLE_TRY(
        o, MatrixShare::interleaved_columns(std::move(o), delta.value_dim, delta.num_key_heads));
  }
  MORACLE_TRY(auto convolution,
              checkpoint.floats(prefix + "conv1d.weight", {delta.mixed(), 1, delta.kernel}));
  MORACLE_TRY(auto a_log, checkpoint.vector(prefix + "A_log", delta.num_value_heads));
  MORACLE_TRY(auto dt_bias, checkpoint.vector(prefix + "dt_bias", delta.num_value_heads));
  MORACLE_TRY(auto norm, checkpoint.vector(prefix + "norm.weight", delta.value_dim));
  return AttentionDescription(GatedDeltaDescription{delta, std::move(convolution), std::move(a_log),
                                                    std::move(dt_bias), std::move(norm),
                                                    std::move(qkvz), std::move(ba), std::move(o)});
}

Result<AttentionDescription> describe_attention(const Checkpoint& checkpoint,
                                                const std::string& prefix, const HybridMoe& spec) {
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, prefix, spec.decoder, spec.heads,
                                     {spec.biased, spec.biased}));
  MORACLE_CHECK(describe_head_norms(checkpoint, prefix, spec.decoder, attention));
  return AttentionDescription(std::move(attention));
}

}  // namespace

Result<HybridMoe> read_hybrid_moe(const Config& config, int64_t num_layers, const char* also) {
  HybridMoe spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  spec.decoder.norm_offset = 1;
  if (spec.decoder.activation != Activation::kSilu)
    return config.unsupported({"hidden_act"}, "silu, for gated DeltaNet", "it is another one");
  MORACLE_TRY(spec.heads, read_grouped_query(config, spec.decoder, false, {.partial = true}));
  spec.heads.output_gate = OutputGate::kInQueries;
  MORACLE_TRY(spec.delta, read_delta(config, spec.decoder));
  MORACLE_TRY(spec.is_delta, read_layer_types(config, num_layers, also));
  MORACLE_TRY(spec.biased, config.boolean_or(false, {"attention_bias"}));
  MORACLE_TRY(const bool gated, config.boolean_or(true, {"attn_output_gate"}));
  if (!gated) return config.unsupported({"attn_output_gate"}, "true", "it is false");
  return spec;
}

Result<AttentionDescription> describe_hybrid_attention(const Checkpoint& checkpoint,
                                                       const HybridMoe& spec, int64_t layer,
                                                       const DeltaModules& modules) {
  const std::string prefix = layer_prefix(checkpoint, layer);
  // A layer for multi-token prediction has attention.
  const auto index = static_cast<size_t>(layer);
  const bool is_delta = index < spec.is_delta.size() && spec.is_delta[index];
  return is_delta ? describe_delta(checkpoint, prefix + "linear_attn.", spec, modules)
                  : describe_attention(checkpoint, prefix + "self_attn.", spec);
}

Result<LayerDescription> describe_hybrid_layer(const Checkpoint& checkpoint, const HybridMoe& spec,
                                               int64_t layer, const DeltaModules& modules) {
  MORACLE_TRY(AttentionDescription attention,
              describe_hybrid_attention(checkpoint, spec, layer, modules));
  return describe_qwen_layer(checkpoint, spec.decoder, layer, std::move(attention), true);
}

namespace {

constexpr std::string_view kB = ".linear_attn.in_proj_b.weight",
                           kA = ".linear_attn.in_proj_a.weight";

// Rows of ssm_ba: of each key head, the b of its value heads, then their a.
void split_ba(GgufModel& model, int64_t per_key) {
  for (const std::string_view ending : {kB, kA}) {
    const int64_t first = ending == kA ? per_key : 0;
    for (auto& [name, entry] : model.tensors) {
      if (!name.ends_with(ending)) continue;
      entry.first_byte = 0;
      entry.row = [per_key, first](int64_t row) {
        return row / per_key * 2 * per_key + first + row % per_key;
      };
    }
  }
}

// Files with ssm_in keep both as in_proj_ba.
void keep_ba(GgufModel& model) {
  std::vector<std::pair<std::string, Tensors::Entry>> whole;
  for (const auto& [name, entry] : model.tensors) {
    if (!name.ends_with(kB)) continue;
    whole.emplace_back(
        str(name.substr(0, name.size() - kB.size()), ".linear_attn.in_proj_ba.weight"), entry);
    whole.back().second.view.shape[0] *= 2;
  }
  std::erase_if(model.tensors, [](const auto& tensor) {
    return tensor.first.ends_with(kB) || tensor.first.ends_with(kA);
  });
  for (auto& [name, entry] : whole) model.tensors.insert_or_assign(name, std::move(entry));
}

}  // namespace

Status finish_hybrid_gguf(GgufModel& model) {
  nlohmann::json& config = model.config;
  MORACLE_CHECK(set_partial_rotary(model));
  MORACLE_TRY(const int64_t key_heads, gguf_integer(model, "ssm.group_count"));
  MORACLE_TRY(const int64_t heads, gguf_integer(model, "ssm.time_step_rank"));
  MORACLE_TRY(config["linear_value_head_dim"], gguf_state_columns(model));
  MORACLE_CHECK(set_recurrent_layers(model));
  reshape(model, ".linear_attn.conv1d.weight", [](const TensorView& stored) {
    std::vector<int64_t> shape = stored.shape;
    if (shape.size() == 2) shape.insert(shape.begin() + 1, 1);
    return shape;
  });
  restore_gate_row(model);
  if (!gguf_has(model, ".ssm_ba.weight")) return {};
  if (gguf_has(model, ".ssm_in.weight"))
    keep_ba(model);
  else if (heads % key_heads == 0)
    split_ba(model, heads / key_heads);
  return {};
}

Status write_hybrid_gguf(GgufDraft& draft) {
  MORACLE_CHECK(put_partial_rotary(draft));
  put_rotary_sections(draft);
  MORACLE_TRY(const int64_t dim, draft.config.integer({"linear_value_head_dim"}, 1, 1 << 16));
  MORACLE_TRY(const int64_t heads, draft.config.integer({"linear_num_value_heads"}, 1, 1 << 16));
  put_gguf(draft, "ssm.inner_size", dim * heads);
  MORACLE_TRY(const std::vector<std::string> types, draft.config.texts({"layer_types"}));
  const auto full = std::find(types.begin(), types.end(), "full_attention");
  if (full != types.end()) {
    put_gguf(draft, "full_attention_interval", full - types.begin() + 1);
    std::vector<bool> recurrent;
    for (const std::string& type : types) recurrent.push_back(type == "linear_attention");
    put_recurrent_layers(draft, recurrent);
  }
  // in_proj_qkvz stays whole, as ssm_in; in_proj_ba belongs to it.
  for (int64_t layer = 0; layer < draft.num_layers; ++layer) {
    auto ba = draft.tensors.extract(str("model.layers.", layer, ".linear_attn.in_proj_ba.weight"));
    if (ba.empty()) continue;
    ba.key() = str("blk.", layer, ".ssm_ba.weight");
    draft.tensors.insert(std::move(ba));
  }
  return {};
}

}  // namespace moracle
