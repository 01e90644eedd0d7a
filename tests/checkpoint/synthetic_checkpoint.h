// Writes tiny whole Qwen3-MoE checkpoints in the format of each producer. A test may change
// everything before it is written: tensors are entries of a map, the config is a JSON value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/scalar.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/safetensors_writer.h"
#include "moracle/checkpoint.h"
#include "support/temporary_folder.h"

namespace moracle::testing {

/// The sizes of the model. The config repeats them.
struct SyntheticSize {
  int64_t layers = 2, experts = 4, top_k = 2, hidden = 32, intermediate = 16;
  int64_t heads = 2, kv_heads = 1, head_dim = 16, vocab = 24;
};

/// Parameters of a synthetic GPTQ file.
struct SyntheticGptq {
  int bits = 4;
  int64_t group_size = 8;  ///< -1: one group
  bool symmetric = true;
  bool v2 = false;
  bool desc_act = false;  ///< columns belong to groups in shuffled order
};
/// "4bits_g8_sym_v1"
inline std::ostream& operator<<(std::ostream& out, const SyntheticGptq& format) {
  out << format.bits << "bits_g";
  format.group_size == -1 ? out << "all" : out << format.group_size;
  return out << (format.symmetric ? "_sym" : "_asym") << (format.v2 ? "_v2" : "_v1")
             << (format.desc_act ? "_act" : "");
}

class SyntheticCheckpoint {
 public:
  nlohmann::json config;
  std::map<std::string, TensorBytes> tensors;
  std::map<std::string, std::string> files;  ///< others to write beside them

  static SyntheticCheckpoint plain(const SyntheticSize& size = {}) {
    SyntheticCheckpoint checkpoint(size);
    checkpoint.add_model([&](const std::string& module, int64_t n, int64_t k) {
      checkpoint.add_floats(module + ".weight", {n, k});
    });
    return checkpoint;
  }
  static SyntheticCheckpoint gptq(const SyntheticGptq& format = {},
                                  const SyntheticSize& size = {}) {
    SyntheticCheckpoint checkpoint(size);
    checkpoint.config["quantization_config"] = {
        {"quant_method", "gptq"},          {"bits", format.bits},
        {"group_size", format.group_size}, {"sym", format.symmetric},
        {"desc_act", format.desc_act},     {"checkpoint_format", format.v2 ? "gptq_v2" : "gptq"}};
    checkpoint.add_model([&](const std::string& module, int64_t n, int64_t k) {
      checkpoint.add_gptq(module, n, k, format);
    });
    return checkpoint;
  }
  /// compressed-tensors: int8 weights per channel, int8 activations per token.
  static SyntheticCheckpoint int8(const SyntheticSize& size = {}) {
    SyntheticCheckpoint checkpoint(size);
    std::vector<std::string> ignore = {"lm_head"};
    for (int64_t l = 0; l < size.layers; ++l)
      ignore.push_back(str("model.layers.", l, ".mlp.gate"));
    const nlohmann::json weights = {{"num_bits", 8},
                                    {"type", "int"},
                                    {"strategy", "channel"},
                                    {"symmetric", true},
                                    {"dynamic", false}};
    const nlohmann::json activations = {{"num_bits", 8},
                                        {"type", "int"},
                                        {"strategy", "token"},
                                        {"symmetric", true},
                                        {"dynamic", true}};
    checkpoint.config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                                {"format", "int-quantized"},
                                                {"ignore", ignore},
                                                {"kv_cache_scheme", nullptr},
                                                {"config_groups",
                                                 {{"group_0",
                                                   {{"targets", {"Linear"}},
                                                    {"weights", weights},
                                                    {"input_activations", activations},
                                                    {"output_activations", nullptr}}}}}};
    checkpoint.add_model([&](const std::string& module, int64_t n, int64_t k) {
      checkpoint.add_int8(module, n, k);
    });
    return checkpoint;
  }

  /// "model.layers.L.mlp.experts.E.part"
  static std::string expert(int64_t layer, int64_t e, const std::string& part) {
    return str("model.layers.", layer, ".mlp.experts.", e, ".", part);
  }
  nlohmann::json& quantization() { return config["quantization_config"]; }
  TensorBytes& at(const std::string& name) { return tensors.at(name); }
  void remove(const std::string& name) { tensors.erase(name); }
  void rename(const std::string& from, const std::string& to) {
    TensorBytes tensor = std::move(tensors.extract(from).mapped());
    tensor.name = to;
    tensors[to] = std::move(tensor);
  }
  /// Sets another dtype or shape. The bytes are cut, or padded with zeros.
  void retype(const std::string& name, DType dtype) { resize(name, dtype, at(name).shape); }
  void reshape(const std::string& name, std::vector<int64_t> shape) {
    resize(name, at(name).dtype, std::move(shape));
  }
  template <class T>
  void add(const std::string& name, DType dtype, std::vector<int64_t> shape,
           const std::vector<T>& values) {
    tensors[name] = {name, dtype, std::move(shape), bytes_of(values)};
  }
  /// Sets one number of a tensor.
  template <class T>
  void set(const std::string& name, size_t index, T value) {
    std::memcpy(at(name).bytes.data() + index * sizeof value, &value, sizeof value);
  }
  template <class T>
  T get(const std::string& name, size_t index) const {
    T value;
    std::memcpy(&value, tensors.at(name).bytes.data() + index * sizeof value, sizeof value);
    return value;
  }

  // Replaces a module by one in the format of a producer.
  void add_floats(const std::string& name, std::vector<int64_t> shape) {
    std::vector<uint16_t> values(TensorView{nullptr, DType::kBF16, shape}.num_elements());
    for (uint16_t& value : values) value = float_to_bf16(uniform(-0.5f, 0.5f));
    add(name, DType::kBF16, std::move(shape), values);
  }
  void add_int8(const std::string& module, int64_t n, int64_t k) {
    std::vector<int8_t> codes(n * k);
    for (int8_t& code : codes) code = static_cast<int8_t>(word());
    codes[0] = -128;
    std::vector<uint16_t> scales(n);
    for (uint16_t& scale : scales) scale = float_to_bf16(uniform(0.001f, 0.01f));
    add(module + ".weight", DType::kI8, {n, k}, codes);
    add(module + ".weight_scale", DType::kBF16, {n, 1}, scales);
  }
  void add_gptq(const std::string& module, int64_t n, int64_t k, const SyntheticGptq& format) {
    const int64_t per_word = 32 / format.bits;
    const int64_t group = format.group_size == -1 ? k : format.group_size;
    const int64_t groups = (k + group - 1) / group;
    std::vector<uint32_t> codes(k / per_word * n), zeros(groups * n / per_word);
    for (uint32_t& code : codes) code = word();
    const uint32_t largest = (1u << format.bits) - 1;
    for (uint32_t& zero : zeros) {
      for (int shift = 0; shift < 32; shift += format.bits) {
        // Stay below the largest code, so that adding 1 never overflows the bits.
        const uint32_t middle = (largest + 1) / 2 - (format.v2 ? 0 : 1);
        zero |= (format.symmetric ? middle : word() % largest) << shift;
      }
    }
    std::vector<uint16_t> scales(groups * n);
    for (uint16_t& scale : scales) scale = float_to_f16(uniform(0.01f, 0.1f));
    std::vector<int32_t> order(k);
    for (int64_t i = 0; i < k; ++i) order[i] = static_cast<int32_t>(i / group);
    if (format.desc_act) shuffle(order, module);
    add(module + ".qweight", DType::kI32, {k / per_word, n}, codes);
    add(module + ".qzeros", DType::kI32, {groups, n / per_word}, zeros);
    add(module + ".scales", DType::kF16, {groups, n}, scales);
    add(module + ".g_idx", DType::kI32, {k}, order);
  }

  /// config.json and model.safetensors.
  Status write(const std::string& folder) const {
    MORACLE_CHECK(write_shard(folder + "/model.safetensors", [](const auto&) { return true; }));
    return write_config(folder);
  }
  /// Writes config.json, shards named "0.safetensors" and so on, and a correct index. `shard` maps
  /// each tensor to its shard. The index may be changed before it is written.
  Status write_shards(const std::string& folder, int count,
                      const std::function<int(const std::string& tensor)>& shard,
                      const std::function<void(nlohmann::json& weight_map)>& edit = {}) const {
    nlohmann::json map = nlohmann::json::object();
    for (const auto& [name, tensor] : tensors) map[name] = str(shard(name), ".safetensors");
    for (int i = 0; i < count; ++i) {
      MORACLE_CHECK(write_shard(str(folder, "/", i, ".safetensors"),
                                [&](const std::string& name) { return shard(name) == i; }));
    }
    if (edit) edit(map);
    std::ofstream(folder + "/model.safetensors.index.json")
        << nlohmann::json{{"metadata", nlohmann::json::object()}, {"weight_map", map}};
    return write_config(folder);
  }
  Status write_config(const std::string& folder) const {
    std::ofstream(folder + "/config.json") << config;
    for (const auto& [name, content] : files) {
      std::ofstream(folder + "/" + name, std::ios::binary) << content;
    }
    return {};
  }
  /// Writes, opens and deletes the checkpoint. The open files stay readable.
  Result<Checkpoint> open() const {
    const TemporaryFolder folder;
    MORACLE_CHECK(write(folder.path()));
    return Checkpoint::open(folder.path());
  }
  /// Opens the checkpoint and describes the experts of one layer.
  Result<DescribedWeights> experts(int64_t layer = 0) const {
    MORACLE_TRY(const Checkpoint checkpoint, open());
    return checkpoint.moe_layer(layer);
  }

 private:
  using AddLinear = std::function<void(const std::string& module, int64_t n, int64_t k)>;

  explicit SyntheticCheckpoint(const SyntheticSize& size) : size_(size) {
    config = {{"architectures", {"Qwen3MoeForCausalLM"}},
              {"num_hidden_layers", size.layers},
              {"hidden_size", size.hidden},
              {"moe_intermediate_size", size.intermediate},
              {"intermediate_size", 2 * size.intermediate},
              {"num_experts", size.experts},
              {"num_experts_per_tok", size.top_k},
              {"norm_topk_prob", true},
              {"hidden_act", "silu"},
              {"num_attention_heads", size.heads},
              {"num_key_value_heads", size.kv_heads},
              {"head_dim", size.head_dim},
              {"vocab_size", size.vocab},
              {"max_position_embeddings", 64},
              {"rms_norm_eps", 1e-6},
              {"rope_theta", 10000.0},
              {"tie_word_embeddings", false}};
  }

  // Every linear layer but the router and the output goes through `add_linear`.
  void add_model(const AddLinear& add_linear) {
    add_floats("model.embed_tokens.weight", {size_.vocab, size_.hidden});
    for (int64_t l = 0; l < size_.layers; ++l) {
      const std::string layer = str("model.layers.", l, ".");
      for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"}) {
        add_floats(layer + norm, {size_.hidden});
      }
      const std::string attention = layer + "self_attn.";
      add_floats(attention + "q_norm.weight", {size_.head_dim});
      add_floats(attention + "k_norm.weight", {size_.head_dim});
      const int64_t q = size_.heads * size_.head_dim, kv = size_.kv_heads * size_.head_dim;
      add_linear(attention + "q_proj", q, size_.hidden);
      add_linear(attention + "k_proj", kv, size_.hidden);
      add_linear(attention + "v_proj", kv, size_.hidden);
      add_linear(attention + "o_proj", size_.hidden, q);
      add_floats(layer + "mlp.gate.weight", {size_.experts, size_.hidden});
      for (int64_t e = 0; e < size_.experts; ++e) {
        add_linear(expert(l, e, "gate_proj"), size_.intermediate, size_.hidden);
        add_linear(expert(l, e, "up_proj"), size_.intermediate, size_.hidden);
        add_linear(expert(l, e, "down_proj"), size_.hidden, size_.intermediate);
      }
    }
    add_floats("model.norm.weight", {size_.hidden});
    add_floats("lm_head.weight", {size_.vocab, size_.hidden});
  }

  Status write_shard(const std::string& path,
                     const std::function<bool(const std::string&)>& holds) const {
    std::vector<TensorBytes> held;
    for (const auto& [name, tensor] : tensors) {
      if (holds(name)) held.push_back(tensor);
    }
    return write_safetensors(path, held);
  }
  void resize(const std::string& name, DType dtype, std::vector<int64_t> shape) {
    TensorBytes& tensor = at(name);
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.bytes.resize(TensorView{nullptr, dtype, tensor.shape}.num_bytes());
  }
  // Modules that read one input (q, k and v; gate and up) are quantized in one order.
  static void shuffle(std::vector<int32_t>& order, std::string module) {
    const size_t dot = module.rfind('.');
    const std::string last = module.substr(dot + 1);
    if (last == "q_proj" || last == "k_proj" || last == "v_proj") module.resize(dot);
    if (last == "gate_proj" || last == "up_proj") module.resize(dot);
    uint32_t seed = 1;
    for (const char c : module) seed = seed * 31 + static_cast<unsigned char>(c);
    std::mt19937 random(seed);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  }
  uint32_t word() { return static_cast<uint32_t>(random_()); }
  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(word() >> 8) * 0x1p-24f;
  }

  SyntheticSize size_;
  std::mt19937 random_{1};
};

}  // namespace moracle::testing
