#include "models/gguf/gguf_recurrent.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/try.h"

namespace moracle {

void decay_logarithm(std::span<float> values) {
  for (float& value : values) value = std::log(-value);
}
void negative_decay(std::span<float> values) {
  for (float& value : values) value = -std::exp(value);
}

namespace gguf_recurrent {
namespace {

size_t num_layers(const GgufModel& model) {
  return model.config["num_hidden_layers"].get<size_t>();
}

nlohmann::json names_of(const std::vector<bool>& recurrent) {
  nlohmann::json types = nlohmann::json::array();
  for (const bool one : recurrent) types.push_back(one ? "linear_attention" : "full_attention");
  return types;
}

// The shape of each tensor whose name ends so, if it has as many elements.
template <class Shape>
void set_shape(GgufTensors& tensors, std::string_view ending, const Shape& shape) {
  for (auto& [name, entry] : tensors) {
    if (!name.ends_with(ending)) continue;
    std::vector<int64_t> wanted = shape(entry.view);
    TensorView changed = entry.view;
    changed.shape = std::move(wanted);
    if (changed.num_elements() == entry.view.num_elements()) entry.view = std::move(changed);
  }
}

std::vector<int64_t> vector_of(const TensorView& view) {
  return {view.num_elements()};
}
std::vector<int64_t> column_of(const TensorView& view) {
  return {view.num_elements(), 1};
}
// [channels, 1, taps] from a shape that ends with the taps.
std::vector<int64_t> convolution_of(const TensorView& view) {
  if (view.shape.size() < 2 || view.shape.back() < 1) return view.shape;
  return {view.num_elements() / view.shape.back(), 1, view.shape.back()};
}

constexpr const char* kKimiConvolutions[] = {".q_conv1d.weight", ".k_conv1d.weight",
                                             ".v_conv1d.weight"};

}  // namespace
}  // namespace gguf_recurrent

Result<std::vector<int64_t>> gguf_layer_numbers(const GgufModel& model, std::string_view key) {
  const std::string full = gguf_key(model, key);
  const nlohmann::json* const value = model.metadata.find({full.c_str()});
  const size_t layers = gguf_recurrent::num_layers(model);
  if (value == nullptr || !value->is_array()) {
    MORACLE_TRY(const int64_t one, gguf_integer(model, key, 0));
    return std::vector<int64_t>(layers, one);
  }
  MORACLE_TRY(std::vector<int64_t> numbers, model.metadata.integers({full.c_str()}));
  const auto fits = [](int64_t one) { return one >= 0 && one <= 1 << 20; };
  if (numbers.size() < layers || !std::all_of(numbers.begin(), numbers.end(), fits)) {
    return model.metadata.wrong({full.c_str()},
                                str("a whole number up to 2^20 for each of ", layers, " layers"),
                                "it has others");
  }
  numbers.resize(layers);  // layers for multi-token prediction follow
  return numbers;
}

Status set_layers_by_kv_heads(GgufModel& model) {
  const char* const key = "attention.head_count_kv";
  MORACLE_TRY(const std::vector<int64_t> heads, gguf_layer_numbers(model, key));
  std::vector<bool> recurrent;
  int64_t num_kv_heads = 0;
  for (const int64_t one : heads) {
    recurrent.push_back(one == 0);
    if (one == 0 || one == num_kv_heads) continue;
    if (num_kv_heads != 0) {
      const std::string full = gguf_key(model, key);
      return model.metadata.unsupported({full.c_str()}, "0 or one other number for each layer",
                                        str("it has ", num_kv_heads, " and ", one));
    }
    num_kv_heads = one;
  }
  model.config["layer_types"] = gguf_recurrent::names_of(recurrent);
  model.config["num_key_value_heads"] =
      num_kv_heads == 0 ? model.config["num_attention_heads"] : nlohmann::json(num_kv_heads);
  return {};
}

Status set_recurrent_layers(GgufModel& model, int64_t period) {
  const std::string key = gguf_key(model, "attention.recurrent_layers");
  const size_t layers = gguf_recurrent::num_layers(model);
  std::vector<bool> recurrent;
  if (const nlohmann::json* const stored = model.metadata.find({key.c_str()})) {
    if (!stored->is_array() || stored->size() < layers)
      return model.metadata.wrong({key.c_str()}, str("a boolean for each of ", layers, " layers"),
                                  "it has others");
    for (size_t layer = 0; layer < layers; ++layer) recurrent.push_back((*stored)[layer] == true);
  } else if (period > 0) {
    MORACLE_TRY(const auto interval, gguf_optional(model, "full_attention_interval"));
    const auto every = static_cast<size_t>(interval.value_or(period));
    for (size_t layer = 1; layer <= layers; ++layer) recurrent.push_back(layer % every != 0);
  } else {
    return {};
  }
  model.config["layer_types"] = gguf_recurrent::names_of(recurrent);
  return {};
}

void put_kv_heads(GgufDraft& draft, const std::vector<bool>& recurrent, int64_t num_kv_heads) {
  nlohmann::json heads = nlohmann::json::array();
  for (const bool one : recurrent) heads.push_back(one ? 0 : num_kv_heads);
  put_gguf(draft, "attention.head_count_kv", std::move(heads));
}

void put_recurrent_layers(GgufDraft& draft, const std::vector<bool>& recurrent) {
  nlohmann::json layers = nlohmann::json::array();
  for (const bool one : recurrent) layers.push_back(one);
  put_gguf(draft, "attention.recurrent_layers", std::move(layers));
}

Result<int64_t> gguf_state_columns(const GgufModel& model) {
  MORACLE_TRY(const int64_t heads, gguf_integer(model, "ssm.time_step_rank"));
  MORACLE_TRY(const int64_t inner, gguf_integer(model, "ssm.inner_size"));
  if (inner % heads == 0) return inner / heads;
  const std::string key = gguf_key(model, "ssm.inner_size");
  return model.metadata.wrong({key.c_str()}, str("a multiple of ", heads, " heads"),
                              str("it is ", inner));
}

void restore_mamba2_shapes(GgufModel& model, const std::string& module) {
  gguf_recurrent::set_shape(model.tensors, module + ".A_log", gguf_recurrent::vector_of);
  gguf_recurrent::set_shape(model.tensors, module + ".D", gguf_recurrent::vector_of);
  gguf_recurrent::set_shape(model.tensors, module + ".norm.weight", gguf_recurrent::vector_of);
  gguf_recurrent::set_shape(model.tensors, module + ".conv1d.weight",
                            gguf_recurrent::convolution_of);
}

void put_mamba2_shapes(GgufDraft& draft, const std::string& module, int64_t num_groups) {
  gguf_recurrent::set_shape(draft.tensors, module + ".A_log", gguf_recurrent::column_of);
  gguf_recurrent::set_shape(draft.tensors, module + ".D", gguf_recurrent::column_of);
  gguf_recurrent::set_shape(
      draft.tensors, module + ".norm.weight", [num_groups](const TensorView& view) {
        return std::vector<int64_t>{num_groups, view.num_elements() / num_groups};
      });
}

void restore_kimi_delta_shapes(GgufModel& model, const std::vector<int64_t>& log_shape) {
  for (const char* const convolution : gguf_recurrent::kKimiConvolutions)
    gguf_recurrent::set_shape(model.tensors, convolution, gguf_recurrent::convolution_of);
  gguf_recurrent::set_shape(model.tensors, ".A_log", [&](const TensorView&) { return log_shape; });
}

void put_kimi_delta_shapes(GgufDraft& draft) {
  for (const char* const convolution : gguf_recurrent::kKimiConvolutions) {
    gguf_recurrent::set_shape(draft.tensors, convolution, [](const TensorView& view) {
      std::vector<int64_t> shape = gguf_recurrent::convolution_of(view);
      if (shape.size() == 3) shape.insert(shape.begin(), 1);
      return shape;
    });
  }
  gguf_recurrent::set_shape(draft.tensors, ".A_log", gguf_recurrent::column_of);
}

void rename_ending(GgufTensors& tensors, std::string_view ending, std::string_view to) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : tensors) {
    if (name.ends_with(ending)) names.push_back(name);
  }
  for (const std::string& name : names) {
    auto tensor = tensors.extract(name);
    tensor.key() = str(name.substr(0, name.size() - ending.size()), to);
    tensors.insert(std::move(tensor));
  }
}

}  // namespace moracle
