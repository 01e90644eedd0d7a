// Opens a model in GGUF as the checkpoint that its family reads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/experts/convention.h"
#include "checkpoint/tensors/tensors.h"
#include "moracle/base.h"

namespace moracle {

struct GgufCheckpoint {
  std::string model_class;  ///< config.json's architectures[0]: "Qwen3MoeForCausalLM"
  const ExpertConvention* convention;
  Config config;    ///< of config.json's keys, with the constants of the family's GGUF table
  Config metadata;  ///< without the vocabulary; the family's table marks the keys that it reads
  Tensors tensors;
  std::vector<std::string> left_out;  ///< see GgufSplits
};

/// Errors: those of open_gguf_splits; an architecture that no family has, with the list of known
/// ones; a required key that is missing, or a value of another type; tensors whose shapes cannot be
/// divided among experts.
Result<GgufCheckpoint> open_gguf(const std::string& path);

/// The metadata of the model at `path`, if it is one in GGUF: for readers of the tokenizer. Errors:
/// those of open_gguf_splits.
Result<std::optional<Config>> gguf_metadata(const std::string& path);

}  // namespace moracle
