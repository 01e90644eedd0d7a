#include "serve/model_set/served_model.h"

#include "base/try.h"

namespace moracle::serve {

Result<ServedModel> ServedModel::open(const Checkpoint& checkpoint) {
  const std::string& folder = checkpoint.folder();
  MORACLE_TRY(Tokenizer tokenizer, Tokenizer::open(folder));
  MORACLE_TRY(GenerationConfig generation, GenerationConfig::open(checkpoint, &tokenizer));
  ServedModel model{
      .folder = folder, .tokenizer = std::move(tokenizer), .generation = std::move(generation)};
  Result<ChatTemplate> chat = ChatTemplate::open(folder);
  if (!chat) {
    model.no_chat = chat.error().to_string();
    return model;
  }
  model.dialect = find_dialect(*chat);
  model.reasoning = find_reasoning(*chat);
  model.chat = *std::move(chat);
  return model;
}

}  // namespace moracle::serve
