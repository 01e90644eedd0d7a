#include "checkpoint/producers/gptq/gptq_options.h"

#include <algorithm>

#include "base/json/json_text.h"
#include "base/json/non_finite_json.h"
#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

// Reads the keys that may differ between modules. Absent keys keep their value in `options`.
Status read_options(const Config& config, GptqOptions& options) {
  MORACLE_TRY(const int64_t bits, config.integer_or(options.bits, {"bits"}, 2, 8));
  if (bits != 4 && bits != 8) {
    return config.unsupported({"bits"}, "4 or 8", str("it is ", bits));
  }
  options.bits = static_cast<int>(bits);
  MORACLE_TRY(options.group_size, config.integer_or(options.group_size, {"group_size"}, -1));
  if (options.group_size == 0) {
    return config.wrong({"group_size"}, "-1 or a positive size", "it is 0");
  }
  MORACLE_TRY(options.symmetric, config.boolean_or(options.symmetric, {"sym"}));
  MORACLE_TRY(options.desc_act, config.boolean_or(options.desc_act, {"desc_act"}));
  return {};
}

}  // namespace

std::vector<std::string> keys_in_order(const Config& quantization, const char* key) {
  std::vector<std::string> keys;
  const nlohmann::json* sorted = quantization.find({key});
  if (sorted == nullptr || !sorted->is_object()) return keys;
  const Result<std::string> text = read_small_file(quantization.path());
  if (text && check_json_text(*text, quantization.path())) {
    auto json = nlohmann::ordered_json::parse(quote_non_finite(*text), nullptr,
                                              /*allow_exceptions=*/false);
    const auto enter = [&](const char* name) {
      if (json.is_object() && json.contains(name)) json = nlohmann::ordered_json(json[name]);
    };
    if (json.is_object() && !json.contains("quantization_config")) enter("text_config");
    enter("quantization_config");
    if (json.is_object() && json.contains(key)) {
      for (const auto& item : json[key].items()) keys.push_back(item.key());
    }
  }
  if (keys.size() == sorted->size()) return keys;
  keys.clear();
  for (const auto& item : sorted->items()) keys.push_back(item.key());
  return keys;
}

Result<GptqConfig> GptqConfig::read(const Config& config) {
  GptqConfig read;
  GptqOptions& options = read.options_;
  MORACLE_CHECK(config.integer({"bits"}, 2, 8));
  MORACLE_CHECK(read_options(config, options));
  MORACLE_TRY(const std::string format, config.text_or("gptq", {"checkpoint_format", "format"}));
  if (format != "gptq" && format != "gptq_v2") {
    return config.unsupported({"checkpoint_format", "format"}, "gptq or gptq_v2",
                              "it is " + format);
  }
  options.v2 = format == "gptq_v2";
  MORACLE_CHECK(read.read_rules(config));
  MORACLE_CHECK(read.read_listed(config));
  return read;
}

// "+:expression" or "expression": options for modules whose name matches from the start.
// "-:expression": these modules are not quantized.
Status GptqConfig::read_rules(const Config& config) {
  MORACLE_TRY(const auto dynamic, config.object({"dynamic"}));
  if (!dynamic || dynamic->value().empty()) return {};
  for (const std::string& key : keys_in_order(config, "dynamic")) {
    const bool leaves_out = key.starts_with("-:");
    const std::string expression = leaves_out || key.starts_with("+:") ? key.substr(2) : key;
    MORACLE_TRY(Pattern pattern, Pattern::make("re:" + expression, config.path()));
    Rule rule{std::move(pattern), std::nullopt};
    if (!leaves_out) {
      MORACLE_TRY(const auto overrides, dynamic->object({key.c_str()}));
      if (!overrides) return dynamic->wrong({key.c_str()}, "an object", "it is null");
      for (const char* other :
           {"checkpoint_format", "format", "quant_method", "method", "adapter"}) {
        if (!overrides->has({other})) continue;
        return overrides->unsupported({other},
                                      "to be absent here, because it is the same for all modules",
                                      "it is " + JsonField::shown(*overrides->find({other})));
      }
      rule.options = options_;
      MORACLE_CHECK(read_options(*overrides, *rule.options));
    }
    rules_.push_back(std::move(rule));
  }
  return {};
}

// A list of lists of module names, which AutoGPTQ groups by calibration order.
Status GptqConfig::read_listed(const Config& config) {
  const auto* listed = config.find({"modules_in_block_to_quantize"});
  if (listed == nullptr) return {};
  for (const auto& group : *listed) {
    for (const auto& module : group.is_array() ? group : nlohmann::json::array({group})) {
      if (!module.is_string()) {
        return config.wrong({"modules_in_block_to_quantize"}, "lists of module names",
                            "it has " + JsonField::shown(module));
      }
      listed_.push_back(module.get<std::string>());
    }
  }
  return {};
}

const GptqConfig::Rule* GptqConfig::rule_of(const std::string& module) const {
  for (const Rule& rule : rules_) {
    if (rule.pattern.matches(module)) return &rule;
  }
  return nullptr;
}

bool GptqConfig::excludes(const std::string& module) const {
  if (const Rule* rule = rule_of(module)) return !rule->options;
  if (listed_.empty()) return false;
  return std::none_of(listed_.begin(), listed_.end(),
                      [&](const std::string& name) { return module.ends_with("." + name); });
}

const GptqOptions& GptqConfig::options(const std::string& module) const {
  const Rule* rule = rule_of(module);
  return rule && rule->options ? *rule->options : options_;
}

}  // namespace moracle
