// Loads the small model on threads as ranks, for the server's tests.
#pragma once

#include <string>

#include "moracle/moracle.h"
#include "paths.h"
#include "support/must.h"

namespace moracle::testing {

inline const std::string kServedFolder = testing::models_dir() + "/qwen3moe-gptq-int4-g128";

/// Null group: a single process.
inline ModelOptions served_options(const std::shared_ptr<Group>& group) {
  ModelOptions options;
  options.threads = 1;
  options.max_num_tokens = 32;
  options.group = group;
  options.parallel.ep_size = group ? group->size() : 1;
  options.parallel.ep_rank = group ? group->rank() : 0;
  return options;
}

inline Model served_model(const ModelOptions& options) {
  return must(Model::load(must(Checkpoint::open(kServedFolder)), options));
}

}  // namespace moracle::testing
