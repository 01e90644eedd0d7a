// The settings of an adapter: PEFT's adapter_config.json, or the metadata of a GGUF file.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/producers/pattern.h"

namespace moracle {

/// The settings of the file for all modules.
struct LoraSettings {
  std::optional<double> alpha = 8;  ///< none: the factor is 1
  bool root_of_rank = false;
  std::vector<std::pair<Pattern, double>> alphas;  ///< the first match applies

  /// Errors (kUnsupported), with the key: another kind of adapter; an adapter for a changed base;
  /// any key whose value may change the arithmetic.
  static Result<LoraSettings> read(const Config& config);
  /// The same for a GGUF file's metadata. Errors: no LoRA adapter; one for certain tokens (aLoRA).
  static Result<LoraSettings> read_gguf(const Config& metadata);
  /// The factor of B A for a module.
  float scale(const std::string& module, int64_t rank) const;
};

}  // namespace moracle
