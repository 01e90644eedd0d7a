// Converts conversations into template values.
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "moracle/text.h"
#include "text/jinja/values/heap.h"

namespace moracle {

/// Errors: invalid UTF-8, with the index of the message.
Result<jinja::Value> to_value(jinja::Heap& heap, std::span<const ChatMessage> messages);

/// Keeps the order of object members. Errors: integers beyond 64 bits.
Result<jinja::Value> to_value(jinja::Heap& heap, const nlohmann::ordered_json& json);

/// Parses a conversation's JSON of the given type. `place` names it in errors. Errors: invalid
/// JSON, another type, nesting too deep.
Result<nlohmann::ordered_json> parse_chat_json(const std::string& text, const char* place,
                                               nlohmann::ordered_json::value_t type);

/// Stores a message's reasoning as `reasoning_content` and as `thinking`, as transformers 5.23
/// does. The message may use either name or `reasoning`.
void name_reasoning(nlohmann::ordered_json& messages);

}  // namespace moracle
