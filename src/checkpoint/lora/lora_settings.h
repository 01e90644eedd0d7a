// The adapter_config.json of an adapter that PEFT wrote.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/producers/pattern.h"

namespace moracle {

/// The settings of the file for all modules.
struct LoraSettings {
  double alpha = 8;
  bool root_of_rank = false;
  std::vector<std::pair<Pattern, double>> alphas;  ///< the first match applies

  /// Errors (kUnsupported), with the key: another kind of adapter; an adapter for a changed base;
  /// any key whose value may change the arithmetic.
  static Result<LoraSettings> read(const Config& config);
  /// The factor of B A for a module.
  float scale(const std::string& module, int64_t rank) const;
};

}  // namespace moracle
