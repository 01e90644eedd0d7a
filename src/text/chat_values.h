// Conversations as values of a template.
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "moracle/text.h"
#include "text/jinja/values/heap.h"

namespace moracle {

/// Errors: invalid UTF-8, with the message.
Result<jinja::Value> to_value(jinja::Heap& heap, std::span<const ChatMessage> messages);

/// The members of objects keep their order. Errors: integers beyond 64 bits.
Result<jinja::Value> to_value(jinja::Heap& heap, const nlohmann::ordered_json& json);

/// Parses JSON of a conversation. `place` names it in errors: no JSON, another type, too deep.
Result<nlohmann::ordered_json> parse_chat_json(const std::string& text, const char* place,
                                               nlohmann::ordered_json::value_t type);

/// Gives a message's reasoning the names that templates read, `reasoning_content` and `thinking`,
/// whichever of them or `reasoning` it has, as transformers 5.23 does.
void name_reasoning(nlohmann::ordered_json& messages);

}  // namespace moracle
