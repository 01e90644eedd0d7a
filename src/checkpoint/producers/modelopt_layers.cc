#include "checkpoint/producers/modelopt_layers.h"

#include <fnmatch.h>

#include <algorithm>
#include <string_view>

#include "base/text.h"

namespace moracle {
namespace {

// The name without the prefix of the language model.
std::string relative(const std::string& name) {
  for (const std::string_view prefix :
       {"model.language_model.", "language_model.model.", "language_model.", "model."}) {
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

// True if `text` is a sequence of whole dot-separated names: "mlp.gate" does not match
// "mlp.gate_proj".
bool holds(const std::string& module, const std::string& text) {
  return !text.empty() && str(".", module, ".").find(str(".", text, ".")) != std::string::npos;
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
  for (const std::string& text : excluded) excluded_.push_back(relative(text));
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
  const std::string name = relative(module);
  return std::any_of(excluded_.begin(), excluded_.end(), [&](const std::string& text) {
    return holds(name, text) || matches(text, name);
  });
}

}  // namespace moracle
