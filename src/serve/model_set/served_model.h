// The model as the API sees it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/api/adapters.h"
#include "serve/model_set/breaker_cache.h"
#include "serve/reasoning/reasoning_format.h"
#include "serve/tools/tool_dialect.h"

namespace moracle::serve {

struct ServedModel {
  std::string name;    ///< name in requests
  std::string folder;  ///< checkpoint folder
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat;
  ToolDialect dialect;                            ///< tool format of the chat template
  const ReasoningFormat* reasoning = nullptr;     ///< of the chat template; null: none
  std::string no_chat;                            ///< why chat is unavailable
  std::shared_ptr<const GrammarEngine> grammars;  ///< null: unavailable, see no_grammars
  std::string no_grammars = "the grammar engine is not started";
  GenerationConfig generation;
  std::vector<int32_t> excluded_ids;  ///< see Tokenizer::ids_without_token
  std::shared_ptr<BreakerCache> breakers = std::make_shared<BreakerCache>();
  std::shared_ptr<Adapters> adapters = std::make_shared<Adapters>();
  ModelOptions options;  ///< options for loading the model again with other adapters
  int64_t vocab_size = 0, max_context = 0;
  std::string explanation;  ///< JSON of the plan and its reasons, for /explain

  /// Reads tokenizer, chat template and generation_config.json of a checkpoint. Errors: those of
  /// the tokenizer and of the config.
  static Result<ServedModel> open(const Checkpoint& checkpoint);
};

}  // namespace moracle::serve
