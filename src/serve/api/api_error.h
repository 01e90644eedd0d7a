// Errors in the formats of OpenAI and Anthropic.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "serve/http/http.h"

namespace moracle::serve {

/// JSON type of replies.
using Json = nlohmann::ordered_json;

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  ///< the field of the request; empty: null
  std::string code;   ///< such as "model_not_found"; empty: null
  /// OpenAI's error type for the status, such as "invalid_request_error".
  const char* type() const;
};

/// Format of a path's errors.
enum class ErrorForm {
  kOpenAi,     ///< {"error": {"message", "type", "param", "code"}}
  kAnthropic,  ///< {"type": "error", "error": {"type", "message"}}
};
ErrorForm error_form(std::string_view path);

nlohmann::ordered_json to_json(const ApiError& error, ErrorForm form = ErrorForm::kOpenAi);
/// The error as an HTTP reply. Status 429 and 503 carry Retry-After.
HttpReply to_reply(const ApiError& error, ErrorForm form = ErrorForm::kOpenAi);
/// Converts a library error: status 400 if the request is wrong, else 500.
ApiError api_error(const Error& error);

/// Status 404. `served`: the name of the served model.
ApiError unknown_model(const std::string& served);

/// One line of JSON. Invalid UTF-8 is replaced by U+FFFD.
std::string dump(const nlohmann::ordered_json& json);

}  // namespace moracle::serve
