#include "checkpoint/producers/modelopt/modelopt_layers.h"

#include <fnmatch.h>

#include <algorithm>
#include <string_view>

namespace moracle {
namespace {

// The name without the prefix of the language model.
std::string relative(const std::string& name) {
  for (const std::string_view prefix : {"model.language_model.", "language_model.model.",
                                        "language_model.", "model.", "backbone."}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

bool is_pattern(const std::string& text) {
  return text.find_first_of("*?[") != std::string::npos;
}

bool matches(const std::string& pattern, const std::string& module) {
  return ::fnmatch(pattern.c_str(), module.c_str(), FNM_NOESCAPE) == 0;
}

}  // namespace

ModelOptLayers::ModelOptLayers(std::map<std::string, std::string> algorithms,
                               const std::vector<std::string>& excluded) {
  for (auto& [name, algorithm] : algorithms) {
    if (is_pattern(name))
      patterns_.emplace_back(relative(name), std::move(algorithm));
    else
      names_.emplace(relative(name), std::move(algorithm));
  }
  for (const std::string& text : excluded) {
    std::string name = relative(text);
    if (!is_pattern(name)) {
      excluded_names_.add(std::move(name));
    } else if (name.find_first_of("*?[") == name.size() - 1 && name.ends_with('*')) {
      name.pop_back();
      excluded_prefixes_.add(std::move(name));
    } else {
      excluded_.push_back(std::move(name));
    }
  }
}

void ModelOptLayers::Names::add(std::string name) {
  lengths_.insert(name.size());
  names_.insert(std::move(name));
}

bool ModelOptLayers::Names::contains(std::string_view name) const {
  return lengths_.contains(name.size()) && names_.find(name) != names_.end();
}

const std::string* ModelOptLayers::algorithm_of(const std::string& module) const {
  std::string name = relative(module);
  while (true) {
    const auto found = names_.find(name);
    if (found != names_.end()) return &found->second;
    for (const auto& [pattern, algorithm] : patterns_) {
      if (matches(pattern, name)) return &algorithm;
    }
    const size_t dot = name.rfind('.');
    if (dot == name.npos) return nullptr;
    name.resize(dot);
  }
}

bool ModelOptLayers::excludes(const std::string& module) const {
  const std::string relative_name = relative(module);
  const std::string_view name = relative_name;
  for (const size_t length : excluded_prefixes_.lengths()) {
    if (length <= name.size() && excluded_prefixes_.contains(name.substr(0, length))) return true;
  }
  // Whole names between dots: "mlp.gate" does not exclude "mlp.gate_proj".
  for (size_t begin = 0; begin < name.size();) {
    for (size_t end = name.find('.', begin);; end = name.find('.', end + 1)) {
      const size_t length = end == name.npos ? name.npos : end - begin;
      if (excluded_names_.contains(name.substr(begin, length))) return true;
      if (end == name.npos) break;
    }
    const size_t dot = name.find('.', begin);
    if (dot == name.npos) break;
    begin = dot + 1;
  }
  return std::any_of(excluded_.begin(), excluded_.end(),
                     [&](const std::string& pattern) { return matches(pattern, relative_name); });
}

}  // namespace moracle
