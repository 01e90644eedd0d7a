#include "published/tensor_names.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "base/text.h"

namespace moracle::published {
namespace {

// Shared by the families' functions: the language model's config and the prefix of its names.
struct Model {
  const Json& config;  // of the language model
  ModuleForms& forms;
  std::string root = "model.";
  std::string output = "lm_head";

  int64_t size(const char* key) const { return config.at(key).get<int64_t>(); }
  int64_t size_or(const char* key, int64_t fallback) const {
    return config.contains(key) && config[key].is_number() ? size(key) : fallback;
  }
  std::string layer(int64_t l) const { return str(root, "layers.", l, "."); }
  int64_t layers() const { return size("num_hidden_layers"); }
  int64_t hidden() const { return size("hidden_size"); }

  void norm(const std::string& module, int64_t n) { forms.floats(module + ".weight", {n}); }
  void norms(const std::string& prefix, std::initializer_list<const char*> names) {
    for (const char* name : names) norm(prefix + name, hidden());
  }
  void ends(bool tied = false) {
    forms.plain(root + "embed_tokens", size("vocab_size"), hidden());
    norm(root + "norm", hidden());
    if (tied) return;
    const bool quantized = forms.quantizes(output) && output == "lm_head";
    quantized ? forms.linear(output, size("vocab_size"), hidden())
              : forms.plain(output, size("vocab_size"), hidden());
  }
  void mlp(const std::string& module, int64_t intermediate) {
    forms.linear(module + ".gate_proj", intermediate, hidden());
    forms.linear(module + ".up_proj", intermediate, hidden());
    forms.linear(module + ".down_proj", hidden(), intermediate);
  }
  struct Names {
    const char *gate = "gate_proj", *up = "up_proj", *down = "down_proj";
  };
  void experts(const std::string& prefix, int64_t count, int64_t intermediate, const Names& names) {
    for (int64_t e = 0; e < count; ++e) {
      const std::string expert = str(prefix, ".", e, ".");
      if (names.gate != nullptr) forms.linear(expert + names.gate, intermediate, hidden());
      forms.linear(expert + names.up, intermediate, hidden());
      forms.linear(expert + names.down, hidden(), intermediate);
    }
  }
  // transformers' form in memory, which the newer families also publish.
  void fused_experts(const std::string& prefix, int64_t count, int64_t intermediate,
                     bool transposed) {
    const int64_t both = 2 * intermediate;
    const auto shape = [&](int64_t n, int64_t k) {
      return transposed ? std::vector<int64_t>{count, k, n} : std::vector<int64_t>{count, n, k};
    };
    forms.floats(prefix + ".gate_up_proj", shape(both, hidden()));
    forms.floats(prefix + ".down_proj", shape(hidden(), intermediate));
  }
  void kv_scales(const std::string& attention) {
    if (!forms.kv_scales()) return;
    forms.one(attention + "k_proj.k_scale");
    forms.one(attention + "v_proj.v_scale");
  }
  void grouped_query(const std::string& attention, int64_t heads, int64_t kv_heads, int64_t dim) {
    forms.linear(attention + "q_proj", heads * dim, hidden());
    forms.linear(attention + "k_proj", kv_heads * dim, hidden());
    forms.linear(attention + "v_proj", kv_heads * dim, hidden());
    kv_scales(attention);
  }
  void grouped_query(const std::string& attention) {
    const int64_t heads = size("num_attention_heads");
    const int64_t dim = size_or("head_dim", hidden() / heads);
    grouped_query(attention, heads, size("num_key_value_heads"), dim);
    forms.linear(attention + "o_proj", hidden(), heads * dim);
  }
  // Adds one tensor for each other modality; their number changes nothing.
  void vision(std::initializer_list<const char*> names) {
    for (const char* name : names) forms.floats(name, {1152, 1152});
  }
};

void add_qwen3_moe(Model& m, bool fused) {
  m.ends();
  for (int64_t l = 0; l < m.layers(); ++l) {
    const std::string layer = m.layer(l);
    m.norms(layer, {"input_layernorm", "post_attention_layernorm"});
    m.grouped_query(layer + "self_attn.");
    for (const char* norm : {"self_attn.q_norm", "self_attn.k_norm"})
      m.norm(layer + norm, m.size("head_dim"));
    const int64_t experts = m.size("num_experts"), size = m.size("moe_intermediate_size");
    m.forms.plain(layer + "mlp.gate", experts, m.hidden());
    fused ? m.fused_experts(layer + "mlp.experts", experts, size, true)
          : m.experts(layer + "mlp.experts", experts, size, {});
  }
}

void add_gated_delta(Model& m, const std::string& delta) {
  const int64_t keys = m.size("linear_num_key_heads") * m.size("linear_key_head_dim");
  const int64_t heads = m.size("linear_num_value_heads"), dim = m.size("linear_value_head_dim");
  const int64_t mixed = 2 * keys + heads * dim;
  m.forms.linear(delta + "in_proj_qkv", mixed, m.hidden());
  m.forms.linear(delta + "in_proj_z", heads * dim, m.hidden());
  m.forms.plain(delta + "in_proj_b", heads, m.hidden());
  m.forms.plain(delta + "in_proj_a", heads, m.hidden());
  m.forms.linear(delta + "out_proj", m.hidden(), heads * dim);
  m.forms.floats(delta + "conv1d.weight", {mixed, 1, m.size("linear_conv_kernel_dim")});
  m.forms.floats(delta + "A_log", {heads}, DType::kF32);
  m.forms.floats(delta + "dt_bias", {heads});
  m.norm(delta + "norm", dim);
}

void add_gated_attention(Model& m, const std::string& attention) {
  const int64_t heads = m.size("num_attention_heads"), dim = m.size("head_dim");
  m.forms.linear(attention + "q_proj", 2 * heads * dim, m.hidden());  // with the attention gate
  m.forms.linear(attention + "k_proj", m.size("num_key_value_heads") * dim, m.hidden());
  m.forms.linear(attention + "v_proj", m.size("num_key_value_heads") * dim, m.hidden());
  m.forms.linear(attention + "o_proj", m.hidden(), heads * dim);
  m.kv_scales(attention);
  m.norm(attention + "q_norm", dim);
  m.norm(attention + "k_norm", dim);
}

// Qwen3.5 and 3.6; without experts, the dense model.
void add_qwen3_5(Model& m) {
  m.ends();
  const int64_t interval = m.size("full_attention_interval");
  const int64_t experts = m.size_or("num_experts", 0);
  const auto feed_forward = [&](const std::string& mlp) {
    if (experts == 0) return m.mlp(mlp, m.size("intermediate_size"));
    const int64_t size = m.size("moe_intermediate_size");
    m.forms.plain(mlp + ".gate", experts, m.hidden());
    m.forms.quantizes(mlp + ".experts.0.gate_proj")
        ? m.experts(mlp + ".experts", experts, size, {})
        : m.fused_experts(mlp + ".experts", experts, size, false);
    m.mlp(mlp + ".shared_expert", m.size("shared_expert_intermediate_size"));
    m.forms.plain(mlp + ".shared_expert_gate", 1, m.hidden());
  };
  for (int64_t l = 0; l < m.layers(); ++l) {
    const std::string layer = m.layer(l);
    m.norms(layer, {"input_layernorm", "post_attention_layernorm"});
    (l + 1) % interval != 0 ? add_gated_delta(m, layer + "linear_attn.")
                            : add_gated_attention(m, layer + "self_attn.");
    feed_forward(layer + "mlp");
  }
  if (m.size_or("mtp_num_hidden_layers", 0) > 0) {
    m.forms.floats("mtp.fc.weight", {m.hidden(), 2 * m.hidden()});
    m.norms("mtp.", {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"});
    feed_forward("mtp.layers.0.mlp");
  }
  m.vision({"model.visual.blocks.0.attn.proj.weight"});
}

// MiniMax-M2 normalizes queries and keys over all heads.
void add_minimax_m2(Model& m) {
  m.ends();
  const int64_t dim = m.size("head_dim"), experts = m.size("num_local_experts");
  for (int64_t l = 0; l < m.layers(); ++l) {
    const std::string layer = m.layer(l), moe = layer + "block_sparse_moe.";
    m.norms(layer, {"input_layernorm", "post_attention_layernorm"});
    m.grouped_query(layer + "self_attn.");
    m.norm(layer + "self_attn.q_norm", m.size("num_attention_heads") * dim);
    m.norm(layer + "self_attn.k_norm", m.size("num_key_value_heads") * dim);
    m.forms.plain(moe + "gate", experts, m.hidden());
    m.forms.floats(moe + "e_score_correction_bias", {experts}, DType::kF32);
    m.experts(moe + "experts", experts, m.size("intermediate_size"), {"w1", "w3", "w2"});
  }
}

// Layers with an indexer choose blocks of keys.
void add_minimax_m3(Model& m) {
  m.ends();
  const int64_t dim = m.size("head_dim"), experts = m.size("num_local_experts");
  const Json& sparse = m.config["sparse_attention_config"];
  const auto count = [&](const char* key) { return sparse.at(key).get<int64_t>(); };
  for (int64_t l = 0; l < m.layers(); ++l) {
    const std::string layer = m.layer(l), self_attn = layer + "self_attn.";
    m.norms(layer, {"input_layernorm", "post_attention_layernorm"});
    m.grouped_query(self_attn);
    m.norm(self_attn + "q_norm", dim);
    m.norm(self_attn + "k_norm", dim);
    if (sparse.at("sparse_attention_freq").at(static_cast<size_t>(l)) == 1) {
      const int64_t columns = count("sparse_index_dim");
      m.forms.linear(self_attn + "index_q_proj", count("sparse_num_index_heads") * columns,
                     m.hidden());
      m.forms.linear(self_attn + "index_k_proj", columns, m.hidden());
      m.norm(self_attn + "index_q_norm", columns);
      m.norm(self_attn + "index_k_norm", columns);
    }
    if (m.config["moe_layer_freq"].at(static_cast<size_t>(l)) != 1) {
      m.mlp(layer + "mlp", m.size("dense_intermediate_size"));
      continue;
    }
    const std::string moe = layer + "block_sparse_moe.";
    m.forms.plain(moe + "gate", experts, m.hidden());
    m.forms.floats(moe + "e_score_correction_bias", {experts}, DType::kF32);
    m.mlp(moe + "shared_experts", m.size("shared_intermediate_size"));
    m.experts(moe + "experts", experts, m.size("intermediate_size"), {"w1", "w3", "w2"});
  }
}

void add_mixtral(Model& m) {
  m.ends();
  for (int64_t l = 0; l < m.layers(); ++l) {
    const std::string layer = m.layer(l), moe = layer + "block_sparse_moe.";
    m.norms(layer, {"input_layernorm", "post_attention_layernorm"});
    m.grouped_query(layer + "self_attn.");
    m.forms.plain(moe + "gate", m.size("num_local_experts"), m.hidden());
    m.experts(moe + "experts", m.size("num_local_experts"), m.size("intermediate_size"),
              {"w1", "w3", "w2"});
  }
}

// GLM-5.2 names the layers that have an indexer of their own.
bool has_indexer(const Model& m, int64_t layer) {
  if (!m.config.contains("index_topk")) return false;
  if (!m.config.contains("indexer_types")) return true;
  const Json& types = m.config["indexer_types"];
  return layer >= static_cast<int64_t>(types.size()) || types[static_cast<size_t>(layer)] == "full";
}

void add_latent(Model& m, const std::string& attention, bool indexer) {
  const int64_t heads = m.size("num_attention_heads"), q_rank = m.size("q_lora_rank");
  const int64_t kv_rank = m.size("kv_lora_rank"), nope = m.size("qk_nope_head_dim");
  const int64_t rope = m.size("qk_rope_head_dim"), value = m.size("v_head_dim");
  m.forms.linear(attention + "q_a_proj", q_rank, m.hidden());
  m.norm(attention + "q_a_layernorm", q_rank);
  m.forms.linear(attention + "q_b_proj", heads * (nope + rope), q_rank);
  m.forms.linear(attention + "kv_a_proj_with_mqa", kv_rank + rope, m.hidden());
  m.norm(attention + "kv_a_layernorm", kv_rank);
  m.forms.linear(attention + "kv_b_proj", heads * (nope + value), kv_rank);
  m.forms.linear(attention + "o_proj", m.hidden(), heads * value);
  if (m.forms.kv_scales()) m.forms.one(attention + "kv_scale");
  if (!indexer) return;
  const int64_t index_heads = m.size("index_n_heads"), dim = m.size("index_head_dim");
  m.forms.linear(attention + "indexer.wq_b", index_heads * dim, q_rank);
  m.forms.linear(attention + "indexer.wk", dim, m.hidden());
  m.forms.plain(attention + "indexer.weights_proj", index_heads, m.hidden());
  m.norm(attention + "indexer.k_norm", dim);
  m.forms.floats(attention + "indexer.k_norm.bias", {dim});
}

// DeepSeek-V3 and V3.2, Kimi-K2, GLM-5. Layers beyond num_hidden_layers predict further tokens.
void add_deepseek(Model& m) {
  m.ends();
  const int64_t experts = m.size("n_routed_experts"), size = m.size("moe_intermediate_size");
  const int64_t next = m.size_or("num_nextn_predict_layers", 0);
  for (int64_t l = 0; l < m.layers() + next; ++l) {
    const std::string layer = m.layer(l), mlp = layer + "mlp";
    m.norms(layer, {"input_layernorm", "post_attention_layernorm"});
    add_latent(m, layer + "self_attn.", has_indexer(m, l));
    if (l >= m.layers()) {
      m.norms(layer, {"enorm", "hnorm", "shared_head.norm"});
      m.forms.plain(layer + "eh_proj", m.hidden(), 2 * m.hidden());
      m.forms.plain(layer + "embed_tokens", m.size("vocab_size"), m.hidden());
      m.forms.plain(layer + "shared_head.head", m.size("vocab_size"), m.hidden());
    }
    if (l < m.size("first_k_dense_replace")) {
      m.mlp(mlp, m.size("intermediate_size"));
      continue;
    }
    m.forms.plain(mlp + ".gate", experts, m.hidden());
    m.forms.floats(mlp + ".gate.e_score_correction_bias", {experts}, DType::kF32);
    m.mlp(mlp + ".shared_experts", m.size("n_shared_experts") * size);
    m.experts(mlp + ".experts", experts, size, {});
  }
}

void add_gemma4(Model& m) {
  m.ends(true);
  const int64_t experts = m.size("num_experts"), size = m.size("moe_intermediate_size");
  for (int64_t l = 0; l < m.layers(); ++l) {
    const std::string layer = m.layer(l), attention = layer + "self_attn.";
    m.norms(layer, {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                    "post_feedforward_layernorm", "pre_feedforward_layernorm_2",
                    "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"});
    m.forms.floats(layer + "layer_scalar", {1});
    const bool full = m.config.at("layer_types").at(static_cast<size_t>(l)) == "full_attention";
    const int64_t heads = m.size("num_attention_heads");
    const int64_t dim = m.size(full ? "global_head_dim" : "head_dim");
    const int64_t kv = m.size(full ? "num_global_key_value_heads" : "num_key_value_heads") * dim;
    m.forms.linear(attention + "q_proj", heads * dim, m.hidden());
    m.forms.linear(attention + "k_proj", kv, m.hidden());
    if (!full) m.forms.linear(attention + "v_proj", kv, m.hidden());
    m.forms.linear(attention + "o_proj", m.hidden(), heads * dim);
    m.kv_scales(attention);
    m.norm(attention + "q_norm", dim);
    m.norm(attention + "k_norm", dim);
    m.mlp(layer + "mlp", m.size("intermediate_size"));
    m.forms.plain(layer + "router.proj", experts, m.hidden());
    m.forms.floats(layer + "router.scale", {m.hidden()});
    m.forms.floats(layer + "router.per_expert_scale", {experts});
    m.forms.quantizes(layer + "experts.0.gate_proj")
        ? m.experts(layer + "experts", experts, size, {})
        : m.fused_experts(layer + "experts", experts, size, false);
  }
  m.vision({"model.vision_tower.patch_embedder.input_proj.weight",
            "model.embed_vision.embedding_projection.weight"});
}

void add_llama4(Model& m) {
  m.ends();
  const int64_t step = m.size("interleave_moe_layer_step");
  const int64_t experts = m.size("num_local_experts"), size = m.size("intermediate_size");
  for (int64_t l = 0; l < m.layers(); ++l) {
    const std::string layer = m.layer(l), mlp = layer + "feed_forward";
    m.norms(layer, {"input_layernorm", "post_attention_layernorm"});
    m.grouped_query(layer + "self_attn.");
    if ((l + 1) % step != 0) {
      m.mlp(mlp, m.size("intermediate_size_mlp"));
      continue;
    }
    m.forms.plain(mlp + ".router", experts, m.hidden());
    m.mlp(mlp + ".shared_expert", size);
    m.fused_experts(mlp + ".experts", experts, size, true);
  }
  m.vision({"vision_model.class_embedding", "multi_modal_projector.linear_1.weight"});
}

// mxfp4 is this family's own form: two tensors of all experts, and biases.
void add_gpt_oss(Model& m) {
  m.ends();
  const int64_t heads = m.size("num_attention_heads"), kv_heads = m.size("num_key_value_heads");
  const int64_t dim = m.size("head_dim"), experts = m.size("num_local_experts");
  const auto biased = [&](const std::string& module, int64_t n, int64_t k) {
    m.forms.plain(module, n, k);
    m.forms.floats(module + ".bias", {n});
  };
  const auto packed = [&](const std::string& name, int64_t n, int64_t k) {
    m.forms.floats(name + "_blocks", {experts, n, k / 32, 16}, DType::kU8);
    m.forms.floats(name + "_scales", {experts, n, k / 32}, DType::kU8);
    m.forms.floats(name + "_bias", {experts, n});
  };
  for (int64_t l = 0; l < m.layers(); ++l) {
    const std::string layer = m.layer(l), attention = layer + "self_attn.";
    m.norms(layer, {"input_layernorm", "post_attention_layernorm"});
    biased(attention + "q_proj", heads * dim, m.hidden());
    biased(attention + "k_proj", kv_heads * dim, m.hidden());
    biased(attention + "v_proj", kv_heads * dim, m.hidden());
    biased(attention + "o_proj", m.hidden(), heads * dim);
    m.forms.floats(attention + "sinks", {heads});
    biased(layer + "mlp.router", experts, m.hidden());
    const int64_t size = m.size("intermediate_size");
    packed(layer + "mlp.experts.gate_up_proj", 2 * size, m.hidden());
    packed(layer + "mlp.experts.down_proj", m.hidden(), size);
  }
}

// Layers with a window have twice the heads of keys, and sinks.
void add_mimo_v2_flash(Model& m) {
  m.ends();
  const int64_t heads = m.size("num_attention_heads"), dim = m.size("head_dim");
  const int64_t value = m.size("v_head_dim"), experts = m.size("n_routed_experts");
  for (int64_t l = 0; l < m.layers(); ++l) {
    const std::string layer = m.layer(l), attention = layer + "self_attn.", mlp = layer + "mlp";
    const auto at = static_cast<size_t>(l);
    const bool window = m.config.at("hybrid_layer_pattern").at(at) == 1;
    const int64_t kv_heads = m.size(window ? "swa_num_key_value_heads" : "num_key_value_heads");
    m.norms(layer, {"input_layernorm", "post_attention_layernorm"});
    m.forms.linear(attention + "q_proj", heads * dim, m.hidden());
    m.forms.linear(attention + "k_proj", kv_heads * dim, m.hidden());
    m.forms.linear(attention + "v_proj", kv_heads * value, m.hidden());
    m.forms.linear(attention + "o_proj", m.hidden(), heads * value);
    if (window) m.forms.floats(attention + "attention_sink_bias", {heads});
    if (m.config.at("moe_layer_freq").at(at) == 0) {
      m.mlp(mlp, m.size("intermediate_size"));
      continue;
    }
    m.forms.floats(mlp + ".gate.weight", {experts, m.hidden()}, DType::kF32);
    m.forms.floats(mlp + ".gate.e_score_correction_bias", {experts}, DType::kF32);
    m.experts(mlp + ".experts", experts, m.size("moe_intermediate_size"), {});
  }
}

// One tensor for each projection of all experts; norms of queries and keys; a gate for each head.
void add_step3p7(Model& m) {
  m.ends();
  const int64_t dim = m.size("head_dim"), experts = m.size("num_experts");
  const int64_t size = m.size("moe_intermediate_size"), shared = m.size("share_expert_dim");
  for (int64_t l = 0; l < m.layers(); ++l) {
    const std::string layer = m.layer(l), attention = layer + "self_attn.", moe = layer + "moe.";
    m.norms(layer, {"input_layernorm", "post_attention_layernorm"});
    m.grouped_query(attention);
    m.norm(attention + "q_norm", dim);
    m.norm(attention + "k_norm", dim);
    m.forms.linear(attention + "g_proj", m.size("num_attention_heads"), m.hidden());
    if (l < m.size("first_k_dense_replace")) {
      m.mlp(layer + "mlp", m.size("intermediate_size"));
      continue;
    }
    m.forms.plain(moe + "gate", experts, m.hidden());
    m.forms.floats(moe + "router_bias", {experts}, DType::kF32);
    m.mlp(layer + "share_expert", shared);
    const bool fp8 = m.forms.quantizes(moe + "up_proj");
    const auto all = [&](const char* name, int64_t n, int64_t k) {
      const std::string weight = moe + name + ".weight";
      m.forms.floats(weight, {experts, n, k}, fp8 ? DType::kF8E4M3 : DType::kBF16);
      if (!fp8) return;
      const int64_t rows = (n + 127) / 128, cols = (k + 127) / 128;
      m.forms.floats(weight + "_scale_inv", {experts, rows, cols}, DType::kF32);
    };
    all("gate_proj", size, m.hidden());
    all("up_proj", size, m.hidden());
    all("down_proj", m.hidden(), size);
  }
}

// M, * (attention), - (MLP) and E (experts) of each layer.
std::string nemotron_layers(const Json& config) {
  if (config.contains("hybrid_override_pattern"))
    return config["hybrid_override_pattern"].get<std::string>();
  std::string letters;
  for (const Json& type : config.at("layers_block_type"))
    letters += type == "mamba" ? 'M' : type == "attention" ? '*' : type == "mlp" ? '-' : 'E';
  return letters;
}

void add_nemotron_mamba(Model& m, const std::string& mixer) {
  const int64_t heads = m.size("mamba_num_heads"), inner = heads * m.size("mamba_head_dim");
  const int64_t mixed = inner + 2 * m.size("n_groups") * m.size("ssm_state_size");
  m.forms.linear(mixer + "in_proj", inner + mixed + heads, m.hidden());
  m.forms.linear(mixer + "out_proj", m.hidden(), inner);
  m.forms.floats(mixer + "conv1d.weight", {mixed, 1, m.size("conv_kernel")});
  m.forms.floats(mixer + "conv1d.bias", {mixed});
  for (const char* name : {"A_log", "D", "dt_bias"}) m.forms.floats(mixer + name, {heads});
  m.norm(mixer + "norm", inner);
}

void add_nemotron_h(Model& m) {
  m.root = "backbone.";
  m.forms.plain("backbone.embeddings", m.size("vocab_size"), m.hidden());
  m.norm("backbone.norm_f", m.hidden());
  m.forms.plain("lm_head", m.size("vocab_size"), m.hidden());
  const auto mlp = [&](const std::string& module, int64_t intermediate) {
    m.forms.linear(module + ".up_proj", intermediate, m.hidden());
    m.forms.linear(module + ".down_proj", m.hidden(), intermediate);
  };
  const auto experts = [&](const std::string& mixer) {
    const int64_t count = m.size("n_routed_experts"), size = m.size("moe_intermediate_size");
    const int64_t latent = m.size_or("moe_latent_size", 0), cols = latent > 0 ? latent : m.hidden();
    m.forms.plain(mixer + "gate", count, m.hidden());
    m.forms.floats(mixer + "gate.e_score_correction_bias", {count}, DType::kF32);
    for (int64_t e = 0; e < count; ++e) {
      m.forms.linear(str(mixer, "experts.", e, ".up_proj"), size, cols);
      m.forms.linear(str(mixer, "experts.", e, ".down_proj"), cols, size);
    }
    mlp(mixer + "shared_experts", m.size("moe_shared_expert_intermediate_size"));
    if (latent == 0) return;
    m.forms.linear(mixer + "fc1_latent_proj", latent, m.hidden());
    m.forms.linear(mixer + "fc2_latent_proj", m.hidden(), latent);
  };
  const std::string layers = nemotron_layers(m.config);
  for (size_t l = 0; l < layers.size(); ++l) {
    const std::string layer = m.layer(static_cast<int64_t>(l)), mixer = layer + "mixer.";
    m.norm(layer + "norm", m.hidden());
    if (layers[l] == 'M') add_nemotron_mamba(m, mixer);
    if (layers[l] == '*') m.grouped_query(mixer);
    if (layers[l] == '-') mlp(layer + "mixer", m.size("intermediate_size"));
    if (layers[l] == 'E') experts(mixer);
  }
  if (m.size_or("num_nextn_predict_layers", 0) > 0)
    m.forms.floats("mtp.layers.0.eh_proj.weight", {m.hidden(), 2 * m.hidden()});
}

// Layers in fp8 with exponents as scales of 128 x 128; experts in MXFP4, NVFP4 or fp8. Names
// without "model.".
void add_deepseek_v4(Model& m) {
  const int64_t hidden = m.hidden(), heads = m.size("num_attention_heads");
  const int64_t dim = m.size("head_dim"), q_rank = m.size("q_lora_rank");
  const int64_t streams = m.size("hc_mult"), experts = m.size("n_routed_experts");
  const int64_t size = m.size("moe_intermediate_size"), top_k = m.size("num_experts_per_tok");
  const auto fp8 = [&](const std::string& module, int64_t n, int64_t k) {
    m.forms.floats(module + ".weight", {n, k}, DType::kF8E4M3);
    m.forms.floats(module + ".scale", {(n + 127) / 128, (k + 127) / 128}, DType::kF8E8M0);
  };
  const bool nvfp4 = m.config.at("quantization_config").contains("moe_quant_algo");
  const auto expert = [&](const std::string& module, int64_t n, int64_t k) {
    if (!m.config.contains("expert_dtype")) return fp8(module, n, k);
    m.forms.floats(module + ".weight", {n, k / 2}, nvfp4 ? DType::kU8 : DType::kI8);
    if (!nvfp4) return m.forms.floats(module + ".scale", {n, k / 32}, DType::kF8E8M0);
    m.forms.floats(module + ".weight_scale", {n, k / 16}, DType::kF8E4M3);
    m.forms.one(module + ".weight_scale_2");
    m.forms.one(module + ".input_scale");
  };
  const auto hyper = [&](const std::string& prefix, int64_t rows, int64_t scales) {
    m.forms.floats(prefix + "_fn", {rows, streams * hidden}, DType::kF32);
    m.forms.floats(prefix + "_base", {rows}, DType::kF32);
    m.forms.floats(prefix + "_scale", {scales}, DType::kF32);
  };
  const auto compressor = [&](const std::string& prefix, int64_t rate, int64_t columns, int64_t n) {
    m.forms.floats(prefix + "ape", {rate, columns}, DType::kF32);
    m.norm(prefix + "norm", n);
    for (const char* name : {"wkv", "wgate"}) m.forms.plain(prefix + name, columns, hidden);
  };
  m.forms.plain("embed", m.size("vocab_size"), hidden);
  m.forms.plain("head", m.size("vocab_size"), hidden);
  m.norm("norm", hidden);
  hyper("hc_head", streams, 1);
  for (int64_t l = 0; l < m.layers(); ++l) {
    const std::string layer = str("layers.", l, "."), attn = layer + "attn.", ffn = layer + "ffn.";
    m.norms(layer, {"attn_norm", "ffn_norm"});
    for (const char* name : {"hc_attn", "hc_ffn"})
      hyper(layer + name, 2 * streams + streams * streams, 3);
    const int64_t rank = m.size("o_groups") * m.size("o_lora_rank");
    m.forms.floats(attn + "attn_sink", {heads}, DType::kF32);
    m.norm(attn + "q_norm", q_rank);
    m.norm(attn + "kv_norm", dim);
    fp8(attn + "wq_a", q_rank, hidden);
    fp8(attn + "wq_b", heads * dim, q_rank);
    fp8(attn + "wkv", dim, hidden);
    fp8(attn + "wo_a", rank, heads * dim / m.size("o_groups"));
    fp8(attn + "wo_b", hidden, rank);
    const auto rate = m.config.at("compress_ratios").at(static_cast<size_t>(l)).get<int64_t>();
    if (rate > 0) compressor(attn + "compressor.", rate, rate == 4 ? 2 * dim : dim, dim);
    if (rate == 4) {
      const int64_t index_heads = m.size("index_n_heads"), index_dim = m.size("index_head_dim");
      compressor(attn + "indexer.compressor.", rate, 2 * index_dim, index_dim);
      fp8(attn + "indexer.wq_b", index_heads * index_dim, q_rank);
      m.forms.plain(attn + "indexer.weights_proj", index_heads, hidden);
    }
    m.forms.plain(ffn + "gate", experts, hidden);
    l < m.size("num_hash_layers")
        ? m.forms.floats(ffn + "gate.tid2eid", {m.size("vocab_size"), top_k}, DType::kI64)
        : m.forms.floats(ffn + "gate.bias", {experts}, DType::kF32);
    for (int64_t e = -1; e < experts; ++e) {
      const std::string module = e < 0 ? ffn + "shared_experts." : str(ffn, "experts.", e, ".");
      const auto add = [&](const char* name, int64_t n, int64_t k) {
        e < 0 ? fp8(module + name, n, k) : expert(module + name, n, k);
      };
      add("w1", size, hidden);
      add("w3", size, hidden);
      add("w2", hidden, size);
    }
  }
  m.forms.floats("mtp.0.e_proj.weight", {hidden, hidden}, DType::kF8E4M3);
}

// Families without a description: only their experts are used, so other tensors are left out.
struct ExpertsOnly {
  const char *model_type, *root, *experts;  // {L} is the layer
  Model::Names names;
  const char* size = "moe_intermediate_size";
  const char* hidden = "hidden_size";  // columns of the experts
};
constexpr ExpertsOnly kExpertsOnly[] = {
    {"kimi_linear",
     "language_model.model.",
     "block_sparse_moe.experts",
     {"w1", "w3", "w2"},
     "moe_intermediate_size",
     "routed_expert_hidden_size"},
};

bool has_experts(const Json& config, int64_t layer) {
  if (config.contains("moe_layer_freq") && config["moe_layer_freq"].is_array())
    return config["moe_layer_freq"].at(static_cast<size_t>(layer)) == 1;
  return layer >= config.value("first_k_dense_replace", 0);
}

void add_experts_only(Model& m, const ExpertsOnly& family) {
  m.root = family.root;
  m.forms.plain(m.root + "embed_tokens", m.size("vocab_size"), m.hidden());
  int64_t experts = 0;
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"})
    experts = m.size_or(key, experts);
  if (experts == 0) return;  // a dense model
  const int64_t size = m.size_or(family.size, 0), hidden = m.size_or(family.hidden, m.hidden());
  const int64_t layers = m.size_or("num_hidden_layers", 1);
  for (int64_t l = 0; l < layers; ++l) {
    if (!has_experts(m.config, l)) continue;
    const std::string prefix = m.layer(l) + family.experts;
    for (int64_t e = 0; e < experts; ++e) {
      const std::string expert = str(prefix, ".", e, ".");
      if (family.names.gate != nullptr) m.forms.linear(expert + family.names.gate, size, hidden);
      m.forms.linear(expert + family.names.up, size, hidden);
      m.forms.linear(expert + family.names.down, hidden, size);
    }
  }
}

}  // namespace

void add_tensors(const Json& config, ModuleForms& forms) {
  const bool wrapped = config.contains("text_config");
  Model m{wrapped ? config["text_config"] : config, forms};
  const std::string whole = config.value("model_type", "");
  const std::string type = m.config.value("model_type", whole);
  if (whole == "kimi_k25" || whole == "llama4" || whole == "minimax_m3_vl") {
    m.root = "language_model.model.";
    m.output = "language_model.lm_head";
  } else if (wrapped) {
    m.root = "model.language_model.";
  }
  if (type == "qwen3_moe") return add_qwen3_moe(m, false);
  if (type == "qwen3_vl_moe_text") return add_qwen3_moe(m, true);
  if (type == "qwen3_5_moe_text" || type == "qwen3_5_text") return add_qwen3_5(m);
  if (type == "minimax_m2") return add_minimax_m2(m);
  if (type == "minimax_m3") return add_minimax_m3(m);
  if (type == "minimax_m3_vl") {
    m.vision({"vision_tower.vision_model.encoder.layers.0.self_attn.out_proj.weight"});
    return add_minimax_m3(m);
  }
  if (type == "mixtral") return add_mixtral(m);
  if (type == "deepseek_v3" || type == "deepseek_v32" || type == "kimi_k2" || type == "glm_moe_dsa")
    return add_deepseek(m);
  if (type == "gemma4_text") return add_gemma4(m);
  if (type == "llama4_text") return add_llama4(m);
  if (type == "gpt_oss") return add_gpt_oss(m);
  if (type == "mimo_v2_flash") return add_mimo_v2_flash(m);
  if (type == "step3p7") return add_step3p7(m);
  if (type == "nemotron_h") return add_nemotron_h(m);
  if (type == "deepseek_v4" || type == "deepseek_ref") return add_deepseek_v4(m);
  for (const ExpertsOnly& family : kExpertsOnly) {
    if (type == family.model_type) return add_experts_only(m, family);
  }
  throw std::runtime_error("no tensor names for model_type " + type + ": add them in this file");
}

}  // namespace moracle::published
