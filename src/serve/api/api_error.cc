#include "serve/api/api_error.h"

namespace moracle::serve {
namespace {

const char* anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

const char* ApiError::type() const {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

ErrorForm error_form(std::string_view path) {
  return path.starts_with("/v1/messages") ? ErrorForm::kAnthropic : ErrorForm::kOpenAi;
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json to_json(const ApiError& error, ErrorForm form) {
  if (form == ErrorForm::kAnthropic) {
    return {{"type", "error"},
            {"error", {{"type", anthropic_type(error.status)}, {"message", error.message}}}};
  }
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"error",
           {{"message", error.message},
            {"type", error.type()},
            {"param", or_null(error.param)},
            {"code", or_null(error.code)}}}};
}

HttpReply to_reply(const ApiError& error, ErrorForm form) {
  HttpReply reply{.status = error.status, .body = dump(to_json(error, form))};
  if (error.status == 429 || error.status == 503) reply.headers.push_back({"Retry-After", "1"});
  if (error.status == 401) reply.headers.push_back({"WWW-Authenticate", "Bearer"});
  return reply;
}

ApiError unknown_model(const std::string& served) {
  return {.status = 404,
          .message = "the model is unknown; this server has " + served,
          .param = "model",
          .code = "model_not_found"};
}

ApiError api_error(const Error& error) {
  const bool is_wrong_request = error.kind == ErrorKind::kInvalidArgument ||
                                error.kind == ErrorKind::kBadFile ||
                                error.kind == ErrorKind::kUnsupported;
  return {.status = is_wrong_request ? 400 : 500,
          .message = error.to_string(),
          .param = is_wrong_request ? error.place : ""};
}

}  // namespace moracle::serve
