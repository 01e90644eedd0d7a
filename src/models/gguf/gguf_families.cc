#include "models/gguf/gguf_families.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "checkpoint/config.h"
#include "quant/blocks/gguf_blocks.h"
#include "quant/codec.h"

namespace moracle {

std::string gguf_key(const GgufModel& model, std::string_view key) {
  return str(model.architecture, ".", key);
}

Result<int64_t> gguf_integer(const GgufModel& model, std::string_view key, int64_t min) {
  const std::string full = gguf_key(model, key);
  return model.metadata.integer({full.c_str()}, min, 1 << 20);
}

Result<std::optional<int64_t>> gguf_optional(const GgufModel& model, std::string_view key,
                                             int64_t min) {
  const std::string full = gguf_key(model, key);
  if (!model.metadata.has({full.c_str()})) return std::optional<int64_t>();
  MORACLE_TRY(const int64_t value, gguf_integer(model, key, min));
  return std::optional(value);
}

bool has_stored(const Tensors& stored, std::string_view ending) {
  const auto& all = stored.all();
  return std::any_of(all.begin(), all.end(),
                     [&](const auto& tensor) { return tensor.first.ends_with(ending); });
}

bool gguf_has(const GgufModel& model, std::string_view ending) {
  return has_stored(model.stored, ending);
}

Result<std::vector<float>> gguf_values(const GgufModel& model, const std::string& tensor) {
  MORACLE_TRY(const TensorView view, model.stored.get(tensor));
  if (view.dtype != DType::kF32)
    return model.stored.wrong(tensor, "f32", "it is " + to_string(view));
  MORACLE_TRY(const TensorData data, model.stored.read(tensor));
  const float* const values = data.view.as<float>();
  return std::vector<float>(values, values + view.num_elements());
}

Status require_gating(const GgufModel& model, GgufGating gating) {
  MORACLE_TRY(const std::optional<int64_t> stored, gguf_optional(model, "expert_gating_func"));
  if (!stored || *stored == static_cast<int64_t>(gating)) return {};
  const std::string key = gguf_key(model, "expert_gating_func");
  return model.metadata.unsupported({key.c_str()},
                                    gating == GgufGating::kSoftmax ? "1, softmax" : "2, sigmoid",
                                    str("it is ", *stored));
}

Status set_partial_rotary(GgufModel& model) {
  MORACLE_TRY(const int64_t rotated, gguf_integer(model, "rope.dimension_count"));
  MORACLE_TRY(const int64_t head_dim, gguf_integer(model, "attention.key_length"));
  model.config["partial_rotary_factor"] =
      static_cast<double>(rotated) / static_cast<double>(head_dim);
  return {};
}

Status set_rotary_divisors(GgufModel& model) {
  const std::string name = "rope_freqs.weight";
  if (model.stored.find(name) == nullptr) return {};
  MORACLE_TRY(const std::vector<float> divisors, gguf_values(model, name));
  model.tensors.erase(name);
  model.config["rope_scaling"]["frequency_divisors"] = divisors;
  return {};
}

void set_attention_bias(GgufModel& model) {
  const auto has = [&](const char* bias) { return gguf_has(model, bias); };
  model.config["attention_bias"] = has(".attn_q.bias") || has(".attn_k.bias") ||
                                   has(".attn_v.bias") || has(".attn_output.bias") ||
                                   has(".attn_q_a.bias") || has(".attn_kv_a_mqa.bias");
}

Status require_renormalized(const GgufModel& model) {
  const std::string norm = gguf_key(model, "expert_weights_norm");
  MORACLE_TRY(const bool renormalized, model.metadata.boolean_or(false, {norm.c_str()}));
  if (!renormalized) return model.metadata.unsupported({norm.c_str()}, "true", "it is not");
  return {};
}

Status set_windowed_rotary(GgufModel& model) {
  nlohmann::json& rope = model.config["rope_parameters"];
  MORACLE_TRY(const int64_t dim, gguf_integer(model, "attention.key_length"));
  MORACLE_TRY(const auto stored, gguf_optional(model, "rope.dimension_count"));
  MORACLE_TRY(const auto windowed, gguf_optional(model, "rope.dimension_count_swa"));
  const auto part = [&](int64_t rotated) {
    return static_cast<double>(rotated) / static_cast<double>(dim);
  };
  rope["full_attention"]["partial_rotary_factor"] = part(stored.value_or(dim));
  rope["sliding_attention"]["partial_rotary_factor"] =
      part(windowed.value_or(stored.value_or(dim)));
  nlohmann::json &full = rope["full_attention"], &sliding = rope["sliding_attention"];
  if (!full.contains("rope_type") || full["rope_type"] == "none") full["rope_type"] = "default";
  if (!sliding.contains("rope_theta")) sliding["rope_theta"] = full["rope_theta"];
  sliding["rope_type"] = "default";
  return {};
}

void subtract_one(std::span<float> values) {
  for (float& value : values) value -= 1;
}
void add_one(std::span<float> values) {
  for (float& value : values) value += 1;
}
void set_layers_without_experts(GgufModel& model) {
  nlohmann::json types = nlohmann::json::array();
  const auto layers = model.config["num_hidden_layers"].get<int64_t>();
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto has = [&](const char* tensor) {
      return model.stored.find(str("blk.", layer, ".ffn_", tensor, ".weight")) != nullptr;
    };
    const bool sparse = has("gate_inp") || has("gate_exps") || has("down_exps");
    types.push_back(sparse ? "sparse" : "dense");
  }
  model.config["first_k_dense_replace"] =
      std::find(types.begin(), types.end(), "sparse") - types.begin();
  model.config["mlp_layer_types"] = std::move(types);
}

Status set_leading_dense(GgufModel& model) {
  MORACLE_TRY(const auto dense, gguf_optional(model, "leading_dense_block_count", 0));
  nlohmann::json types = nlohmann::json::array();
  const auto layers = model.config["num_hidden_layers"].get<int64_t>();
  for (int64_t layer = 0; layer < layers; ++layer)
    types.push_back(layer < dense.value_or(0) ? "dense" : "sparse");
  model.config["mlp_layer_types"] = std::move(types);
  return {};
}

Status set_layer_types(GgufModel& model, int64_t period, GgufUnwindowed which) {
  const std::string key = gguf_key(model, "attention.sliding_window_pattern");
  const auto layers = model.config["num_hidden_layers"].get<size_t>();
  const nlohmann::json* const pattern = model.metadata.find({key.c_str()});
  nlohmann::json types = nlohmann::json::array();
  const auto push = [&](bool window) {
    types.push_back(window ? "sliding_attention" : "full_attention");
  };
  if (pattern != nullptr && pattern->is_array()) {
    const bool booleans = std::all_of(
        pattern->begin(), pattern->end(),
        [](const nlohmann::json& one) { return one.is_boolean() || one == 0 || one == 1; });
    if (!booleans || pattern->size() < layers) {
      return model.metadata.wrong({key.c_str()}, str("a boolean for each of ", layers, " layers"),
                                  str("it has ", pattern->size(), " values"));
    }
    for (size_t layer = 0; layer < layers; ++layer) {
      const nlohmann::json& one = (*pattern)[layer];
      push(one == true || one == 1);
    }
  } else {
    MORACLE_TRY(const auto stored, gguf_optional(model, "attention.sliding_window_pattern", 0));
    MORACLE_TRY(const auto window, gguf_optional(model, "attention.sliding_window", 0));
    const auto every = static_cast<size_t>(stored.value_or(period));
    const size_t from = which == GgufUnwindowed::kFirst ? 0 : 1;
    for (size_t layer = 0; layer < layers; ++layer)
      push(window.value_or(0) > 0 && (every == 0 || (layer + from) % every != 0));
  }
  model.config["layer_types"] = std::move(types);
  return {};
}

namespace {

template <class Use>
void for_each(GgufModel& model, std::string_view ending, const Use& use) {
  for (auto& [name, entry] : model.tensors) {
    if (name.ends_with(ending)) use(entry);
  }
}

}  // namespace

void reshape(GgufModel& model, std::string_view ending,
             const std::function<std::vector<int64_t>(const TensorView& stored)>& shape) {
  for_each(model, ending, [&](Tensors::Entry& entry) { entry.view.shape = shape(entry.view); });
}

void reorder_rows(GgufModel& model, std::string_view ending,
                  const std::function<int64_t(int64_t row)>& stored) {
  for_each(model, ending, [&](Tensors::Entry& entry) { entry.row = stored; });
}

void restore_gate_row(GgufModel& model) {
  reshape(model, ".mlp.shared_expert_gate.weight", [](const TensorView& stored) {
    return stored.shape.size() == 1 ? std::vector<int64_t>{1, stored.shape[0]} : stored.shape;
  });
}

Status undo_rotary_order(GgufModel& model) {
  MORACLE_TRY(const int64_t heads, gguf_integer(model, "attention.head_count"));
  MORACLE_TRY(const int64_t hidden, gguf_integer(model, "embedding_length"));
  MORACLE_TRY(const auto stored_dim, gguf_optional(model, "attention.key_length", 2));
  const int64_t dim = stored_dim.value_or(hidden / heads);
  if (dim < 2 || dim % 2 != 0) return {};  // the family refuses it
  const auto stored = [dim](int64_t row) {
    const int64_t at = row % dim, half = dim / 2;
    return row - at + at % half * 2 + at / half;
  };
  for (const char* name : {"q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias"}) {
    for_each(model, str(".self_attn.", name), [&](Tensors::Entry& entry) {
      // Another number of rows is an error of the family, which names the tensor.
      if (!entry.view.shape.empty() && entry.view.shape[0] % dim == 0) entry.row = stored;
    });
  }
  return {};
}

namespace {

void decode(const TensorView& view, float* values) {
  const int64_t count = view.num_elements();
  if (is_gguf_block(view.dtype))
    return decode_blocks(view.dtype, view.data, count / block(view.dtype).elements, values);
  visit_codec(view.dtype, [&]<class Codec>() {
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(Codec::decode(view.data, i));
  });
}

// One layer's kv_b_proj.
struct LatentKeysAndValues {
  Tensors::Entry keys, values;  // [heads, rank, nope] and [heads, value, rank]
  int64_t nope, value, rank;
  std::string name;

  // Rows of head after head: those of keys, then those of values. Reads whole heads.
  Result<TensorData> read(const Tensors& tensors, int64_t first, int64_t count,
                          ThreadPool& pool) const {
    const int64_t size = (nope + value) * rank;
    const int64_t begin = first / size, end = (first + count + size - 1) / size;
    MORACLE_TRY(const std::vector<float> k, floats(tensors, keys, begin, end, nope * rank, pool));
    MORACLE_TRY(const std::vector<float> v,
                floats(tensors, values, begin, end, value * rank, pool));
    const auto bytes = static_cast<size_t>((end - begin) * size) * sizeof(float);
    const std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);
    auto* to = reinterpret_cast<float*>(memory.get());
    for (int64_t head = 0; head < end - begin; ++head) {
      const float *key = &k[static_cast<size_t>(head * nope * rank)],
                  *val = &v[static_cast<size_t>(head * value * rank)];
      for (int64_t row = 0; row < nope; ++row) {
        for (int64_t column = 0; column < rank; ++column) *to++ = key[column * nope + row];
      }
      to = std::copy(val, val + value * rank, to);
    }
    const std::byte* const data = memory.get() + (first - begin * size) * sizeof(float);
    return TensorData{{data, DType::kF32, {count}}, memory};
  }

 private:
  Result<std::vector<float>> floats(const Tensors& tensors, const Tensors::Entry& entry,
                                    int64_t begin, int64_t end, int64_t size,
                                    ThreadPool& pool) const {
    const int64_t count = (end - begin) * size;
    MORACLE_TRY(const TensorData data, tensors.read(name, entry, begin * size, count, pool));
    std::vector<float> numbers(static_cast<size_t>(count));
    decode(data.view, numbers.data());
    return numbers;
  }
};

}  // namespace

Status merge_kv_b(GgufModel& model) {
  MORACLE_TRY(const int64_t heads, gguf_integer(model, "attention.head_count"));
  MORACLE_TRY(const int64_t rank, gguf_integer(model, "attention.kv_lora_rank"));
  const auto nope = model.config["qk_nope_head_dim"].get<int64_t>();
  const auto value = model.config["v_head_dim"].get<int64_t>();
  const auto layers = model.config["num_hidden_layers"].get<int64_t>() +
                      model.config.value("num_nextn_predict_layers", int64_t{0});
  const auto take = [&](const std::string& name,
                        std::vector<int64_t> shape) -> Result<Tensors::Entry> {
    MORACLE_TRY(const TensorView view, model.stored.get(name));
    if (view.shape != shape) {
      return model.stored.wrong(name, str("shape [", join(shape), "], by the metadata"),
                                "it is " + to_string(view));
    }
    const auto at = model.stored.all().find(name);
    Tensors::Entry entry = at->second;
    entry.stored = name;
    model.tensors.erase(name);
    return entry;
  };
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string from = str("blk.", layer, ".attn_"), k_b = from + "k_b.weight",
                      v_b = from + "v_b.weight";
    const bool split = model.stored.find(k_b) != nullptr || model.stored.find(v_b) != nullptr;
    if (!split) continue;
    const std::string to = str("model.layers.", layer, ".self_attn.kv_b_proj.weight");
    MORACLE_TRY(Tensors::Entry keys, take(k_b, {heads, rank, nope}));
    MORACLE_TRY(Tensors::Entry values, take(v_b, {heads, value, rank}));
    Tensors::Entry merged;
    merged.view = {nullptr, DType::kF32, {heads * (nope + value), rank}};
    merged.file = keys.file;
    merged.stored = k_b;
    merged.make =
        [kv = LatentKeysAndValues{std::move(keys), std::move(values), nope, value, rank, to}](
            const Tensors& tensors, int64_t first, int64_t count, ThreadPool& pool) {
          return kv.read(tensors, first, count, pool);
        };
    model.tensors.insert_or_assign(to, std::move(merged));
  }
  return {};
}

namespace {

// Files from before April 2025 hold attn_kv_b and the sizes of heads under the usual keys.
Status set_latent_sizes(GgufModel& model) {
  MORACLE_TRY(const int64_t rotated, gguf_integer(model, "rope.dimension_count"));
  const std::string mla = gguf_key(model, "attention.key_length_mla");
  const std::string suffix = model.metadata.has({mla.c_str()}) ? "_mla" : "";
  MORACLE_TRY(const int64_t keys, gguf_integer(model, "attention.key_length" + suffix));
  MORACLE_TRY(const int64_t values, gguf_integer(model, "attention.value_length" + suffix));
  if (keys <= rotated) {
    const std::string key = gguf_key(model, "attention.key_length" + suffix);
    return model.metadata.wrong({key.c_str()}, str("more than ", rotated, " rotated columns"),
                                str("it is ", keys));
  }
  model.config["qk_nope_head_dim"] = keys - rotated;
  model.config["v_head_dim"] = values;
  return {};
}

}  // namespace

Status finish_deepseek(GgufModel& model) {
  nlohmann::json& config = model.config;
  MORACLE_CHECK(set_latent_sizes(model));
  // Without a low rank of queries, config.json has null.
  if (!config.contains("q_lora_rank")) config["q_lora_rank"] = nullptr;
  if (config.contains("rope_scaling")) {
    nlohmann::json& rope = config["rope_scaling"];
    // The converter stores mscale_all_dim / 10. Published models have the same mscale.
    const std::string key = gguf_key(model, "rope.scaling.yarn_log_multiplier");
    MORACLE_TRY(const double multiplier, model.metadata.number_or(0, {key.c_str()}));
    if (multiplier != 0) rope["mscale"] = rope["mscale_all_dim"] = 10 * multiplier;
  }
  set_attention_bias(model);
  return merge_kv_b(model);
}

}  // namespace moracle
