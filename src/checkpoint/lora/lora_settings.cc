#include "checkpoint/lora/lora_settings.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

// Adapters have an alpha near their rank. A much larger alpha would not fit into the f32 scale.
constexpr double kLargestAlpha = 1e6;
constexpr const char* kAlphaRange = "a number from -1000000 to 1000000";

// Keys that are read below, and keys about the training or the origin of an adapter. The latter
// have no effect on the result, which depends only on the tensors.
constexpr std::string_view kKnownKeys[] = {"alpha_pattern",
                                           "auto_mapping",
                                           "base_model_name_or_path",
                                           "bias",
                                           "corda_config",
                                           "ensure_weight_tying",
                                           "eva_config",
                                           "exclude_modules",
                                           "inference_mode",
                                           "init_lora_weights",
                                           "layers_pattern",
                                           "layers_to_transform",
                                           "loftq_config",
                                           "lora_alpha",
                                           "lora_dropout",
                                           "lora_ga_config",
                                           "megatron_config",
                                           "megatron_core",
                                           "peft_type",
                                           "peft_version",
                                           "qalora_group_size",
                                           "r",
                                           "rank_pattern",
                                           "revision",
                                           "runtime_config",
                                           "target_modules",
                                           "target_parameters",
                                           "task_type",
                                           "use_rslora",
                                           "velora_config"};

bool is_unset(const nlohmann::json& value) {
  return value.is_null() || value == false || value == "" ||
         ((value.is_array() || value.is_object()) && value.empty());
}

// Any other key with a value could change the formula (use_dora, lora_bias, layer_replication,
// alora_invocation_tokens) or the base (modules_to_save).
Status check_keys(const Config& config) {
  for (const auto& [key, value] : config.value().items()) {
    const auto* known = std::find(std::begin(kKnownKeys), std::end(kKnownKeys), key);
    if (known != std::end(kKnownKeys) || is_unset(value)) continue;
    return config.unsupported({key.c_str()},
                              "to be absent, null or false, because Moracle does not support it",
                              "it is " + JsonField::shown(value));
  }
  return {};
}

// Some initializations subtract the adapter's start values from the base. PEFT saves such an
// adapter for the changed base, unless it converts the adapter; the value is then true.
Status check_initialization(const Config& config) {
  const auto* value = config.find({"init_lora_weights"});
  if (value == nullptr || value->is_boolean()) return {};
  if (value->is_string()) {
    auto text = value->get<std::string>();
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    for (const char* same_base : {"gaussian", "eva", "orthogonal", "mica"}) {
      if (text == same_base) return {};
    }
  }
  return config.unsupported(
      {"init_lora_weights"},
      "true, false, gaussian, eva, orthogonal or mica, which do not change the "
      "base weights (to convert the adapter: save_pretrained with "
      "path_initial_model_for_weight_conversion)",
      "it is " + JsonField::shown(*value));
}

Result<double> read_alpha(const Config& config, double absent, const char* key) {
  MORACLE_TRY(const double alpha, config.number_or(absent, {key}));
  if (std::abs(alpha) > kLargestAlpha)
    return config.wrong({key}, kAlphaRange, str("it is ", alpha));
  return alpha;
}

}  // namespace

Result<LoraSettings> LoraSettings::read(const Config& config) {
  MORACLE_TRY(const std::string type, config.text({"peft_type"}));
  if (type != "LORA") return config.unsupported({"peft_type"}, "LORA", "it is " + type);
  MORACLE_CHECK(check_keys(config));
  MORACLE_CHECK(check_initialization(config));
  MORACLE_TRY(const std::string bias, config.text_or("none", {"bias"}));
  if (bias != "none") return config.unsupported({"bias"}, "none", "it is " + bias);
  LoraSettings settings;
  MORACLE_TRY(settings.alpha, read_alpha(config, 8, "lora_alpha"));
  MORACLE_TRY(settings.root_of_rank, config.boolean_or(false, {"use_rslora"}));
  MORACLE_TRY(const auto alphas, config.object({"alpha_pattern"}));
  if (!alphas) return settings;
  for (const auto& [key, value] : alphas->value().items()) {
    if (!value.is_number() || std::abs(value.get<double>()) > kLargestAlpha)
      return config.wrong({"alpha_pattern"}, str(kAlphaRange, " for each pattern"),
                          str(key, " has ", JsonField::shown(value)));
    // PEFT matches a key against the end of a module's name.
    MORACLE_TRY(Pattern pattern, Pattern::make("re:(.*\\.)?(" + key + ")$", config.path()));
    settings.alphas.emplace_back(std::move(pattern), value.get<double>());
  }
  return settings;
}

Result<LoraSettings> LoraSettings::read_gguf(const Config& metadata) {
  constexpr const char *kType = "general.type", *kMethod = "adapter.type",
                       *kTokens = "adapter.alora.invocation_tokens";
  MORACLE_TRY(const std::string type, metadata.text_or("model", {kType}));
  if (type != "adapter") return metadata.unsupported({kType}, "adapter", "it is " + type);
  MORACLE_TRY(const std::string method, metadata.text({kMethod}));
  if (method != "lora") return metadata.unsupported({kMethod}, "lora", "it is " + method);
  if (metadata.has({kTokens}))
    return metadata.unsupported({kTokens}, "to be absent, because Moracle does not support it",
                                "it is there");
  LoraSettings settings;
  MORACLE_TRY(const double alpha, read_alpha(metadata, 0, "adapter.lora.alpha"));
  settings.alpha = alpha == 0 ? std::nullopt : std::optional(alpha);  // as in llama.cpp
  return settings;
}

float LoraSettings::scale(const std::string& module, int64_t rank) const {
  if (!alpha) return 1;
  double chosen = *alpha;
  for (const auto& [pattern, value] : alphas) {
    if (!pattern.matches(module)) continue;
    chosen = value;
    break;
  }
  const auto r = static_cast<double>(rank);
  return static_cast<float>(chosen / (root_of_rank ? std::sqrt(r) : r));
}

}  // namespace moracle
