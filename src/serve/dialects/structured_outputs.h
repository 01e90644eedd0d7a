// Constrained decoding by vLLM's fields: structured_outputs, and the older guided_json and others.
#pragma once

#include "serve/dialects/generation_request.h"

namespace moracle::serve {

/// True if the request has one of these fields.
bool has_structured_outputs(const JsonField& body);
/// Sets `grammar` to that of structured_outputs or of a guided field; keeps it if there is none.
/// `ordered`: the body with the order of its members. Errors: two of these fields, or one beside
/// response_format, tools or ignore_eos; a value that the grammar engine does not enforce; a build
/// without the engine.
Status add_structured_outputs(const JsonField& body, const Json& ordered, const ServedModel& model,
                              GrammarText& grammar);

}  // namespace moracle::serve
