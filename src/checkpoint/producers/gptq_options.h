// What GPTQ's quantization config says: of all modules, and of those that "dynamic" singles out.
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
  bool v2 = false;
};

class GptqConfig {
 public:
  /// Errors: a value that makes no sense, or a variant that is not read, by its key.
  static Result<GptqConfig> read(const Config& config);

  Says says(const std::string& module) const;
  /// The options of a module that is not left out.
  const GptqOptions& options(const std::string& module) const;

 private:
  /// One entry of "dynamic".
  struct Rule {
    Pattern pattern;
    std::optional<GptqOptions> options;  ///< nothing: the module is not quantized
  };
  Status read_rules(const Config& config);
  Status read_listed(const Config& config);
  const Rule* rule_of(const std::string& module) const;

  GptqOptions options_;
  std::vector<Rule> rules_;          // the first that matches counts
  std::vector<std::string> listed_;  // modules_in_block_to_quantize, where given
};

}  // namespace moracle
