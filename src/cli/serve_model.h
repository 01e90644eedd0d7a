// The model of `moracle serve`: a checkpoint, or random weights.
#pragma once

#include "options/model_options.h"
#include "options/speculation_options.h"
#include "ranks/routing_file.h"
#include "serve/server.h"

namespace moracle::cli {

struct ServeArguments {
  ModelArguments model;
  std::string name, adapter_folder;
  std::vector<std::string> adapters;  ///< NAME=DIR
  std::vector<std::string> models;    ///< NAME=DIR, loaded at first use
  int64_t model_memory = 0;           ///< of `models` together; 0: no limit
  int64_t step_tokens = 0;
  std::string shape, scheme = "int4-w4a16-g128";  ///< not empty: random weights of this shape
  std::string tokenizer;  ///< with a shape: the folder of a tokenizer; empty: tokens are numbers
  int64_t layers = 2;
  SpeculationArguments speculation;
};

struct ServedWeights {
  serve::ServedModel served;
  Model model;
};

/// Loads the model, with counters for `routing`. Sets `engine.cache_bytes` if it is 0. Errors:
/// neither a folder nor a shape; those of the plan and of loading.
Result<ServedWeights> load_served(const ServeArguments& arguments, serve::EngineOptions& engine,
                                  RoutingFile& routing);

/// The models that are loaded at their first use. Errors: a missing name or folder; a folder that
/// is no checkpoint.
Result<std::vector<serve::ModelSource>> model_sources(const ServeArguments& arguments,
                                                      const serve::RunningOptions& running);

}  // namespace moracle::cli
