#include "published/module_forms.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <regex>
#include <stdexcept>
#include <utility>

#include "base/text.h"

namespace moracle::published {
namespace {

std::string bytes_of(const void* value, size_t size) {
  return {static_cast<const char*>(value), size};
}

int64_t blocks(int64_t size) {
  return (size + 127) / 128;
}

std::vector<std::string> texts(const Json& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (config.contains(key) && config[key].is_array())
      return config[key].get<std::vector<std::string>>();
  }
  return {};
}

// All experts of a layer follow one rule: use that of expert 0.
std::string of_first_expert(const std::string& module) {
  const size_t at = module.find(".experts.");
  if (at == module.npos) return module;
  const size_t number = at + std::strlen(".experts.");
  const size_t end = module.find_first_not_of("0123456789", number);
  return end == number
             ? module
             : module.substr(0, number) + "0" + module.substr(std::min(end, module.size()));
}

}  // namespace

ModuleForms::ModuleForms(Json quantization) : config_(std::move(quantization)) {
  if (config_.is_null()) return;
  const std::string method = config_.value("quant_method", "modelopt");
  std::string algorithm = config_.value("quant_algo", "");
  const auto form = [](const std::string& name) {
    const std::map<std::string, Form> kForms = {{"FP8", Form::kFp8Tensor},
                                                {"MXFP8", Form::kMxfp8},
                                                {"NVFP4", Form::kNvfp4},
                                                {"W4A16_NVFP4", Form::kNvfp4Weights}};
    const auto found = kForms.find(name);
    if (found == kForms.end()) throw std::runtime_error("no form for quant_algo " + name);
    return found->second;
  };
  excluded_ = texts(config_, {"ignore", "exclude_modules", "modules_to_not_convert"});
  if (method == "fp8" && !config_.contains("moe_quant_algo")) {
    form_ = Form::kFp8Block;
    name_ = "fp8";
  } else if (method == "compressed-tensors") {
    name_ = "compressed-tensors " + config_.at("format").get<std::string>();
    form_ = name_.find("mxfp4") != name_.npos ? Form::kMxfp4 : Form::kInt4;
  } else if (method == "mxfp4") {
    name_ = "mxfp4";
  } else {
    name_ = "ModelOpt " + algorithm;
    kv_scales_ = config_.contains("kv_cache_scheme") && !config_["kv_cache_scheme"].is_null();
    kv_scales_ |= config_.value("kv_cache_quant_algo", Json()) == "FP8";
    if (algorithm != "MIXED_PRECISION") {
      form_ = form(algorithm);
      return;
    }
    for (const auto& [module, layer] : config_.at("quantized_layers").items())
      layers_[module] = form(layer.at("quant_algo"));
  }
}

bool ModuleForms::is_excluded(const std::string& module) const {
  return std::any_of(excluded_.begin(), excluded_.end(), [&](const std::string& text) {
    if (text.starts_with("re:"))
      return std::regex_search(module, std::regex(text.substr(3)),
                               std::regex_constants::match_continuous);
    return module == text || module.ends_with("." + text) || module.starts_with(text + ".") ||
           ::fnmatch(text.c_str(), module.c_str(), FNM_NOESCAPE) == 0;
  });
}

ModuleForms::Form ModuleForms::decide(const std::string& module) const {
  if (layers_.empty()) return is_excluded(module) ? Form::kPlain : form_;
  for (std::string name = module; !name.empty();) {
    if (const auto found = layers_.find(name); found != layers_.end()) return found->second;
    const size_t dot = name.rfind('.');
    name = dot == name.npos ? "" : name.substr(0, dot);
  }
  return Form::kPlain;
}

ModuleForms::Form ModuleForms::form_of(const std::string& module) {
  if (config_.is_null()) return Form::kPlain;
  const auto [entry, is_new] = decided_.try_emplace(of_first_expert(module), Form::kPlain);
  if (is_new) entry->second = decide(entry->first);
  return entry->second;
}

void ModuleForms::one(const std::string& name) {
  const float value = 1;
  tensors_.add(name, DType::kF32, {}, bytes_of(&value, sizeof value));
}

void ModuleForms::linear(const std::string& module, int64_t n, int64_t k) {
  const Form form = form_of(module);
  const std::string weight = module + ".weight", scale = module + ".weight_scale";
  switch (form) {
    case Form::kPlain:
      return floats(weight, {n, k});
    case Form::kFp8Block:
      floats(weight, {n, k}, DType::kF8E4M3);
      return floats(scale + "_inv", {blocks(n), blocks(k)}, DType::kF32);
    case Form::kFp8Tensor:
      floats(weight, {n, k}, DType::kF8E4M3);
      one(scale);
      return one(module + ".input_scale");
    case Form::kMxfp8:
      floats(weight, {n, k}, DType::kF8E4M3);
      return floats(scale, {n, k / 32}, DType::kU8);
    case Form::kNvfp4:
    case Form::kNvfp4Weights:
      floats(weight, {n, k / 2}, DType::kU8);
      floats(scale, {n, k / 16}, DType::kF8E4M3);
      one(scale + "_2");
      if (form == Form::kNvfp4) one(module + ".input_scale");
      return;
    case Form::kMxfp4:
      floats(module + ".weight_packed", {n, k / 2}, DType::kU8);
      return floats(scale, {n, k / 32}, DType::kU8);
    case Form::kInt4: {
      const int64_t shape[] = {n, k};
      floats(module + ".weight_packed", {n, k / 8}, DType::kI32);
      floats(scale, {n, k / 32});
      return tensors_.add(module + ".weight_shape", DType::kI64, {2},
                          bytes_of(shape, sizeof shape));
    }
  }
}

}  // namespace moracle::published
