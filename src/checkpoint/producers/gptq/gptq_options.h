// GPTQ's quantization config: the options of all modules, and the exceptions in "dynamic".
// AutoRound writes matrices of the same form.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/producers/pattern.h"
#include "checkpoint/producers/producer.h"

namespace moracle {

struct GptqOptions {
  int bits = 4;
  int64_t group_size = 128;  ///< -1: one group
  bool symmetric = true;
  bool desc_act = false;
  bool v2 = false;  ///< zero points are stored as they are, not minus 1
};

/// A matrix in GPTQ's form. Errors: a tensor that is missing or has another dtype or shape.
Result<DescribedLinear> describe_gptq(const Tensors& tensors, const std::string& module,
                                      const GptqOptions& options);

/// The keys of the object `key` of a quantization config, in the order of the file, which sets the
/// order of rules. A Config sorts its keys, so the file is read again.
std::vector<std::string> keys_in_order(const Config& quantization, const char* key);

class GptqConfig {
 public:
  /// Errors: an invalid value, or an unsupported variant, with its key.
  static Result<GptqConfig> read(const Config& config);

  bool excludes(const std::string& module) const;
  /// The options of a quantized module.
  const GptqOptions& options(const std::string& module) const;

 private:
  /// One entry of "dynamic".
  struct Rule {
    Pattern pattern;
    std::optional<GptqOptions> options;  ///< nullopt: the module is not quantized
  };
  Status read_rules(const Config& config);
  Status read_listed(const Config& config);
  const Rule* rule_of(const std::string& module) const;

  GptqOptions options_;
  std::vector<Rule> rules_;          // the first match applies
  std::vector<std::string> listed_;  // modules_in_block_to_quantize, if present
};

}  // namespace moracle
