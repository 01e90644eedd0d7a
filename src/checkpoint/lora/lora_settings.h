// adapter_config.json of an adapter that PEFT wrote.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/producers/pattern.h"

namespace moracle {

/// What the file says about all modules together.
struct LoraSettings {
  double alpha = 8;
  bool root_of_rank = false;
  std::vector<std::pair<Pattern, double>> alphas;  ///< the first that matches a module counts

  /// Errors (kUnsupported), by the key: another kind of adapter, one for a changed base, and every
  /// key with a value that is not known to leave the arithmetic alone.
  static Result<LoraSettings> read(const Config& config);
  /// What multiplies B A of a module.
  float scale(const std::string& module, int64_t rank) const;
};

}  // namespace moracle
