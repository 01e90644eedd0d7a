// Errors in OpenAI's form.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "serve/http/http.h"

namespace moracle::serve {

/// JSON of replies.
using Json = nlohmann::ordered_json;

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  ///< the field of the request; empty: null
  std::string code;   ///< such as "model_not_found"; empty: null
  /// "invalid_request_error" and so on, from the status.
  const char* type() const;
};

/// {"error": {"message", "type", "param", "code"}}
nlohmann::ordered_json to_json(const ApiError& error);
/// The same as a reply. Status 429 and 503 carry Retry-After.
HttpReply to_reply(const ApiError& error);
/// An error of the library as an answer to a request: status 400 where the request is wrong, else
/// 500.
ApiError api_error(const Error& error);

/// Status 404: `served` is the model that there is.
ApiError unknown_model(const std::string& served);

/// One line of JSON. Invalid UTF-8 is replaced by U+FFFD.
std::string dump(const nlohmann::ordered_json& json);

}  // namespace moracle::serve
