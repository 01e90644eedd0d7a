// Answers of inspect, explain and run --dry-run for published configs. Each config becomes a folder
// of full size whose weights are holes of a sparse file.
#pragma once

#include <string>
#include <vector>

#include "moracle/base.h"

namespace moracle::published {

enum class Support { kRuns, kExpertsOnly, kRefused };

struct Answer {
  std::string model;  ///< "nvidia/Qwen3-235B-A22B-NVFP4"
  std::string form;   ///< "ModelOpt NVFP4"
  Support support = Support::kRefused;
  std::string reason;                        ///< why it does not run; empty if it does
  ErrorKind kind = ErrorKind::kUnsupported;  ///< of the reason
  int64_t bytes = 0;                         ///< of the tensors
  /// For each machine: the experts' rows, and why the model does not run there; empty if it does.
  struct Row {
    std::string machine, backends, lacks;
  };
  std::vector<Row> rows;
};

/// The config.json files of a folder, OWNER--MODEL_config.json, sorted; empty if it has none.
std::vector<std::string> published_configs(const std::string& folder);

/// Makes the folder of a config in `scratch`, which must exist, and computes its answer. Errors:
/// the config cannot be read; no tensor names for its model_type; a machine on which explain and
/// run disagree.
Result<Answer> ask(const std::string& config, const std::string& scratch);

/// Lines of the table in docs/models.md.
std::string table_head();
std::string table_row(const Answer& answer);

}  // namespace moracle::published
