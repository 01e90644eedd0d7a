#include "serve/answers/messages_answer.h"
#include "serve/answers/openai_answer.h"
#include "serve/answers/responses_answer.h"

namespace moracle::serve {

std::shared_ptr<Answer> Answer::make(GenerationRequest& request, const Tokenizer& tokenizer,
                                     std::shared_ptr<Exchange> exchange, ResponseStore& store) {
  switch (request.dialect) {
    case Dialect::kResponses:
      return std::make_shared<ResponsesAnswer>(request, std::move(exchange), store);
    case Dialect::kMessages:
      return std::make_shared<MessagesAnswer>(request, std::move(exchange));
    default:
      return std::make_shared<OpenAiAnswer>(request, tokenizer, std::move(exchange));
  }
}

}  // namespace moracle::serve
