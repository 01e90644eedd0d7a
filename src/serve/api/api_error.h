// Errors in OpenAI's format.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

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

/// {"error": {"message", "type", "param", "code"}}
nlohmann::ordered_json to_json(const ApiError& error);
/// The error as an HTTP reply. Status 429 and 503 carry Retry-After.
HttpReply to_reply(const ApiError& error);
/// Converts a library error: status 400 if the request is wrong, else 500.
ApiError api_error(const Error& error);

/// Status 404. `served`: the name of the served model.
ApiError unknown_model(const std::string& served);

/// One line of JSON. Invalid UTF-8 is replaced by U+FFFD.
std::string dump(const nlohmann::ordered_json& json);

}  // namespace moracle::serve
