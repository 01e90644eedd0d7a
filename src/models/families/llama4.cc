// Llama-4: layers with RoPE attend within chunks, with weightless norms on q and k. The others have
// neither RoPE nor chunks, and their queries grow with the position. One expert per token, whose
// input is weighted by a sigmoid, and a shared expert; dense layers between.
#include <algorithm>
#include <functional>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace llama4 {
namespace {

// The defaults of transformers' Llama4TextConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192,
  "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40,
  "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "num_experts_per_tok": 1, "num_local_experts": 16, "interleave_moe_layer_step": 1,
  "use_qk_norm": true, "no_rope_layer_interval": 4, "attention_chunk_size": 8192,
  "attn_temperature_tuning": true, "floor_scale": 8192, "attn_scale": 0.1, "attention_bias": false,
  "rope_theta": 500000.0
})";

constexpr ExpertNames kNames[] = {
    {.experts = "model.layers.{L}.feed_forward.experts", .fused = true, .transposed = true},
    {"model.layers.{L}.feed_forward.experts", "gate_proj", "up_proj", "down_proj"}};
constexpr const char* kSize[] = {"intermediate_size"};

struct Layer {
  bool rope = true, chunked = true, sparse = true;
};
struct Spec {
  DecoderSpec decoder;
  GroupedQuerySpec rope, no_rope;  // attention of layers with RoPE, and without
  int64_t chunk = 0;
  bool qk_norm = true, biased = false;
  int64_t expert_intermediate = 0, dense_intermediate = 0;
  std::vector<Layer> layers;
};

// Older files give a number for this switch.
Result<bool> read_tempering(const Config& config) {
  const nlohmann::json* const value = config.find({"attn_temperature_tuning"});
  if (value != nullptr && value->is_number_integer()) return *value != 0;
  return config.boolean_or(false, {"attn_temperature_tuning"});
}

Status read_attention(const Config& config, Spec& spec) {
  MORACLE_TRY(spec.rope, read_grouped_query(config, spec.decoder, false));
  spec.rope.qk_norm = QkNorm::kAfterRope;
  spec.rope.rotary.interleaved = true;
  spec.no_rope = spec.rope;
  rotate_nothing(spec.no_rope.rotary);
  MORACLE_TRY(const bool tempers, read_tempering(config));
  if (tempers) {
    MORACLE_TRY(const int64_t scale, config.integer({"floor_scale"}, 1));
    MORACLE_TRY(const double strength, config.number({"attn_scale"}));
    if (!(strength >= 0 && strength <= 1e3))
      return config.wrong({"attn_scale"}, "a number from 0 to 1000", str("it is ", strength));
    spec.no_rope.temper_scale = static_cast<float>(scale);
    spec.no_rope.temper_strength = static_cast<float>(strength);
  }
  MORACLE_TRY(spec.qk_norm, config.boolean_or(false, {"use_qk_norm"}));
  MORACLE_TRY(spec.biased, config.boolean_or(false, {"attention_bias"}));
  return {};
}

Result<bool> is_chunked(const Config& config, const std::string& type) {
  if (type == "chunked_attention" || type == "full_attention") return type == "chunked_attention";
  return config.unsupported({"layer_types"}, "chunked_attention and full_attention",
                            "it has " + type);
}

Status read_layers(const Config& config, Spec& spec) {
  const auto wrong_count = [&](const char* key, size_t count) {
    return config.wrong({key}, str("one for each of ", spec.layers.size(), " layers"),
                        str("it has ", count));
  };
  MORACLE_TRY(const std::vector<int64_t> ropes, config.integers({"no_rope_layers"}));
  if (!ropes.empty() && ropes.size() < spec.layers.size())
    return wrong_count("no_rope_layers", ropes.size());
  MORACLE_TRY(const int64_t interval, config.integer({"no_rope_layer_interval"}, 1));
  MORACLE_TRY(const std::vector<std::string> types, config.texts({"layer_types"}));
  if (!types.empty() && types.size() != spec.layers.size())
    return wrong_count("layer_types", types.size());
  MORACLE_TRY(const int64_t step, config.integer({"interleave_moe_layer_step"}, 1));
  MORACLE_TRY(const std::vector<int64_t> sparse, config.integers({"moe_layers"}));
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    const auto number = static_cast<int64_t>(l);
    Layer& layer = spec.layers[l];
    layer.rope = ropes.empty() ? (number + 1) % interval != 0 : ropes[l] != 0;
    layer.chunked = layer.rope && config.has({"attention_chunk_size"});
    if (!types.empty()) {
      MORACLE_TRY(layer.chunked, is_chunked(config, types[l]));
    }
    layer.sparse = config.has({"moe_layers"})
                       ? std::find(sparse.begin(), sparse.end(), number) != sparse.end()
                       : (number + 1) % step == 0;
  }
  const bool chunked =
      std::any_of(spec.layers.begin(), spec.layers.end(), std::mem_fn(&Layer::chunked));
  if (chunked) {
    MORACLE_TRY(spec.chunk, config.integer({"attention_chunk_size"}, 1));
  }
  const bool dense =
      !std::all_of(spec.layers.begin(), spec.layers.end(), std::mem_fn(&Layer::sparse));
  if (dense) {
    MORACLE_TRY(spec.dense_intermediate, config.integer({"intermediate_size_mlp"}, 1, 1 << 24));
  }
  return {};
}

Result<Spec> read(const Config& config, int64_t num_layers) {
  Spec spec;
  spec.layers.resize(static_cast<size_t>(num_layers));
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  MORACLE_CHECK(read_attention(config, spec));
  MORACLE_CHECK(read_layers(config, spec));
  MORACLE_TRY(spec.expert_intermediate, config.integer({"intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(const int64_t top_k, config.integer({"num_experts_per_tok"}, 1));
  if (top_k == 1) return spec;
  return config.unsupported({"num_experts_per_tok"}, "1, because the weight is on the input",
                            str("it is ", top_k));
}

Result<GroupedQueryDescription> describe_attention(const Checkpoint& checkpoint,
                                                   const std::string& prefix, const Spec& spec,
                                                   const Layer& layer) {
  GroupedQuerySpec heads = layer.rope ? spec.rope : spec.no_rope;
  heads.chunk = layer.chunked ? spec.chunk : 0;
  const bool normed = layer.rope && spec.qk_norm;
  if (!normed) heads.qk_norm = QkNorm::kPerHead;
  MORACLE_TRY(
      GroupedQueryDescription attention,
      describe_grouped_query(checkpoint, prefix, spec.decoder, heads, {spec.biased, spec.biased}));
  if (normed) attention.q_norm = attention.k_norm = std::vector<float>(heads.head_dim, 1.0f);
  return attention;
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& spec,
                                        int64_t number) {
  const Layer& layer = spec.layers[static_cast<size_t>(number)];
  const DecoderSpec& decoder = spec.decoder;
  const std::string prefix = layer_prefix(checkpoint, number), mlp = prefix + "feed_forward";
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_attention(checkpoint, prefix + "self_attn.", spec, layer));
  if (!layer.sparse) {
    MORACLE_TRY(DescribedWeights weights,
                describe_dense_mlp(checkpoint, mlp, decoder, spec.dense_intermediate));
    return describe_decoder_layer(checkpoint, decoder, number, std::move(attention),
                                  std::move(weights));
  }
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(number));
  MORACLE_TRY(RouterDescription router, describe_router(checkpoint, mlp + ".router", experts.spec));
  MORACLE_TRY(SharedExpertDescription shared,
              describe_shared_expert(checkpoint, mlp + ".shared_expert", "", decoder,
                                     spec.expert_intermediate));
  return describe_decoder_layer(checkpoint, decoder, number, std::move(attention),
                                std::move(experts), std::move(router), std::move(shared));
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  return describe_decoder(checkpoint, spec.decoder,
                          [&](int64_t layer) { return describe_layer(checkpoint, spec, layer); });
}

constexpr GgufKey kGgufKeys[] = {
    {"feed_forward_length", "intermediate_size_mlp"},
    {"expert_feed_forward_length", "intermediate_size"},
    {"interleave_moe_layer_step", "interleave_moe_layer_step"},
    {"attention.key_length", "head_dim"},
};
constexpr GgufTensor kGgufTensors[] = {
    {"blk.{L}.ffn_norm", "model.layers.{L}.post_attention_layernorm"},
    {"blk.{L}.ffn_gate", "model.layers.{L}.feed_forward.gate_proj"},
    {"blk.{L}.ffn_up", "model.layers.{L}.feed_forward.up_proj"},
    {"blk.{L}.ffn_down", "model.layers.{L}.feed_forward.down_proj"},
    {"blk.{L}.ffn_gate_inp", "model.layers.{L}.feed_forward.router"},
    {"blk.{L}.ffn_gate_shexp", "model.layers.{L}.feed_forward.shared_expert.gate_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.feed_forward.shared_expert.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.feed_forward.shared_expert.down_proj"},
    {"blk.{L}.ffn_gate_exps", "model.layers.{L}.feed_forward.experts.{E}.gate_proj"},
    {"blk.{L}.ffn_up_exps", "model.layers.{L}.feed_forward.experts.{E}.up_proj"},
    {"blk.{L}.ffn_gate_up_exps", "model.layers.{L}.feed_forward.experts.{E}.gate_proj",
     "model.layers.{L}.feed_forward.experts.{E}.up_proj"},
    {"blk.{L}.ffn_down_exps", "model.layers.{L}.feed_forward.experts.{E}.down_proj"},
};
Status finish_gguf(GgufModel& model) {
  // A window of 0 is another model: MobileLLM, with RoPE in every layer.
  const std::string key = gguf_key(model, "attention.sliding_window");
  if (model.metadata.has({key.c_str()}))
    return model.metadata.unsupported({key.c_str()}, "no such key", "it is there");
  // llama.cpp tells Maverick, which has no norms, by its 128 experts.
  model.config["use_qk_norm"] = model.config["num_experts"] != 128;
  return set_rotary_divisors(model);
}
Status write_gguf(GgufDraft& draft) {
  MORACLE_TRY(const int64_t head_dim, head_dim_of(draft));
  return put_rotary_divisors(draft, head_dim);
}
// The rest is fixed by llama.cpp.
constexpr GgufConvention kGguf[] = {{.architecture = "llama4",
                                     .keys = kGgufKeys,
                                     .tensors = kGgufTensors,
                                     .constants = R"({
  "no_rope_layer_interval": 4, "attention_chunk_size": 8192, "attn_temperature_tuning": true,
  "floor_scale": 8192, "attn_scale": 0.1})",
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace llama4

constinit const Family kLlama4Family = {.architecture = "Llama4ForCausalLM",
                                        .multimodal = "Llama4ForConditionalGeneration",
                                        .models = "Llama-4 Scout, Maverick",
                                        .notes = "text only",
                                        .describe = llama4::describe,
                                        .experts = {.defaults = llama4::kDefaults,
                                                    .names = llama4::kNames,
                                                    .intermediate_size = llama4::kSize,
                                                    .score = Score::kSigmoid,
                                                    .renormalize_keys = {},
                                                    .weight_on_input = true,
                                                    .gguf = llama4::kGguf}};

}  // namespace moracle
