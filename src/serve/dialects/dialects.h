// The readers of all dialects: each turns the body of its path into a GenerationRequest.
#pragma once

#include "serve/dialects/generation_request.h"
#include "serve/dialects/response_store.h"

namespace moracle::serve {

/// Errors of all readers: fields of a wrong type or out of range; unsupported fields that would
/// change the answer; a prompt that does not fit in the context. `text` is the unparsed body.
/// `progress` can cancel tokenization.
Result<GenerationRequest> read_completion(const nlohmann::json& body, const std::string& text,
                                          const ServedModel& model, const Progress& progress = {});
Result<GenerationRequest> read_chat(const nlohmann::json& body, const std::string& text,
                                    const ServedModel& model, const Progress& progress = {});
/// Also takes the items of `previous_response_id` from `store`. Errors: an id that it does not
/// hold.
Result<GenerationRequest> read_responses(const nlohmann::json& body, const std::string& text,
                                         const ServedModel& model, const ResponseStore& store,
                                         const Progress& progress = {});
Result<GenerationRequest> read_messages(const nlohmann::json& body, const std::string& text,
                                        const ServedModel& model, const Progress& progress = {});

/// The prompt of chat completions. Errors: those of read_chat about messages and tools.
Result<ChatPrompt> read_chat_prompt(const JsonField& body, const std::string& text,
                                    const ServedModel& model);
/// The prompt of /v1/messages and of /v1/messages/count_tokens.
Result<ChatPrompt> read_messages_prompt(const JsonField& body, const std::string& text,
                                        const ServedModel& model);

}  // namespace moracle::serve
