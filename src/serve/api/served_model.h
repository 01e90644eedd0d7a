// What the interface knows of the model.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "moracle/model.h"

namespace moracle::serve {

struct ServedModel {
  std::string name;    ///< in requests
  std::string folder;  ///< of the checkpoint
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat;
  std::string no_chat;  ///< why there is no chat template
  GenerationConfig generation;
  std::vector<int32_t> excluded_ids;        ///< see Tokenizer::ids_without_token
  std::map<std::string, int32_t> adapters;  ///< by name in requests: index in ModelOptions
  int64_t vocab_size = 0, max_context = 0;
  std::string explanation;  ///< the plan and its reasons, as JSON

  /// Reads tokenizer, chat template and generation_config.json of a checkpoint. Errors: those of
  /// the tokenizer and of the config.
  static Result<ServedModel> open(const Checkpoint& checkpoint);
};

}  // namespace moracle::serve
