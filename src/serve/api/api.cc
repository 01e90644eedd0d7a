#include "serve/api/api.h"

#include "base/text.h"
#include "base/try.h"
#include "serve/api/page.h"
#include "serve/api/query.h"
#include "serve/api/unsupported_paths.h"

namespace moracle::serve {

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() != secret.size();
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = secret.empty() ? '\0' : secret[i % secret.size()];
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(other);
  }
  return difference == 0;
}

std::span<const Api::Route> Api::routes() {
  static constexpr Route kRoutes[] = {
      {"/", &Api::page, nullptr, true},
      {"/health", &Api::health, nullptr, true},
      {"/metrics", &Api::metrics, nullptr, false},
      {"/explain", &Api::explain, nullptr, false},
      {"/v1/models", &Api::models, nullptr, false},
      {"/v1/models/", &Api::one_model, nullptr, false},
      {"/v1/completions", nullptr, &ModelApi::completions, false},
      {"/v1/chat/completions", nullptr, &ModelApi::chat_completions, false},
      {"/v1/responses", nullptr, &ModelApi::responses, false},
      {"/v1/responses/", &Api::one_response, nullptr, false, &Api::delete_response},
      {"/v1/messages", nullptr, &ModelApi::messages, false},
      {"/v1/messages/count_tokens", nullptr, &ModelApi::count_tokens, false},
      {"/tokenize", nullptr, &ModelApi::tokenize, false},
      {"/detokenize", nullptr, &ModelApi::detokenize, false},
      {"/reload", nullptr, &ModelApi::reload, false},
      {"/rebalance", nullptr, &ModelApi::rebalance, false},
      {"/v1/load_lora_adapter", nullptr, &ModelApi::load_adapter, false},
      {"/v1/unload_lora_adapter", nullptr, &ModelApi::unload_adapter, false},
  };
  return kRoutes;
}

const Api::Route* Api::find(const HttpRequest& request, bool& knows_path) {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  for (const Route& route : routes()) {
    const std::string_view path = route.path;
    const bool is_prefix = path.size() > 1 && path.ends_with('/');
    if (is_prefix ? !request.path.starts_with(path) : request.path != path) continue;
    knows_path = true;
    const bool removes = request.method == "DELETE" && route.remove;
    if (removes || (route.read ? reads : request.method == "POST")) return &route;
  }
  return nullptr;
}

std::optional<ApiError> Api::refusal(const HttpRequest& request, const Route& route) const {
  if (!origin_policy_.may_send(request.origin, request.host)) {
    return ApiError{
        .status = 403,
        .message = "requests from foreign web pages are blocked (--allow-origin allows one)",
        .code = "origin_not_allowed"};
  }
  const bool has_bearer =
      equal_in_constant_time(request.authorization, "Bearer " + options_.api_key);
  const bool has_key = equal_in_constant_time(request.api_key, options_.api_key) || has_bearer;
  if (!route.is_public && !options_.api_key.empty() && !has_key) {
    return ApiError{
        .status = 401,
        .message = "needs the header Authorization: Bearer, or x-api-key, with the server's key",
        .code = "invalid_api_key"};
  }
  if (!request.encoding.empty() && request.encoding != "identity") {
    return ApiError{.status = 415,
                    .message = "bodies must not have a Content-Encoding",
                    .code = "unsupported_encoding"};
  }
  return {};
}

std::optional<HttpReply> Api::at_header(const HttpRequest& request) {
  auto reply = reply_to_header(request);
  if (reply) log_request(options_.log, request, *reply);
  return reply;
}

std::optional<HttpReply> Api::reply_to_header(const HttpRequest& request) {
  if (!origin_policy_.may_use(request.host)) {
    return to_reply({.status = 403,
                     .message = "needs a Host header that names this server: localhost, 127.0.0.1, "
                                "[::1], the address of --host or the host of --allow-origin",
                     .code = "host_not_allowed"},
                    error_form(request.path));
  }
  if (request.method == "OPTIONS" && !options_.allowed_origin.empty()) {
    return HttpReply{.status = 204,
                     .headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE"},
                                 {"Access-Control-Allow-Headers", "*, Authorization"}}};
  }
  bool knows_path = false;
  const Route* const route = find(request, knows_path);
  if (const char* const why = route ? nullptr : why_unsupported(request.path)) {
    return to_reply({.message = request.path + ": " + why, .code = "not_supported"},
                    error_form(request.path));
  }
  if (!route) {
    return to_reply(
        {.status = knows_path ? 405 : 404,
         .message = knows_path ? "this path does not support this method" : "no such path",
         .code = knows_path ? "method_not_allowed" : "unknown_url"},
        error_form(request.path));
  }
  if (const auto refused = refusal(request, *route))
    return to_reply(*refused, error_form(request.path));
  if (request.method == "DELETE") return (this->*route->remove)(request);
  if (!route->read) return {};
  return (this->*route->read)(request);
}

HttpReply Api::refuse(const HttpRequest& request, int status, const std::string& message) const {
  HttpReply reply = to_reply({.status = status, .message = message}, error_form(request.path));
  log_request(options_.log, request, reply);
  return reply;
}

namespace {

// The model of a request among several. Errors: a body that is no JSON object, or a name that is no
// text.
Result<std::string> named_model(const std::string& body) {
  static const std::string kNoFile;
  if (body.empty()) return std::string();
  MORACLE_TRY(const nlohmann::json json, parse_body(body));
  const JsonField name = JsonField(json, kNoFile)["model"];
  if (name.is_null()) return std::string();
  return name.text();
}

}  // namespace

void Api::answer(HttpRequest request, const std::shared_ptr<Exchange>& exchange) {
  bool knows_path = false;
  const Route& route = *find(request, knows_path);
  const ErrorForm form = error_form(request.path);
  const std::shared_ptr<Exchange> logged = make_logged(options_.log, request, exchange);
  std::string name;
  if (!models_.keeps_one()) {
    auto named = named_model(request.body);
    if (!named) return logged->reply(to_reply(api_error(named.error()), form));
    name = *std::move(named);
  }
  models_.use(name, logged, form,
              [&route, request = std::make_shared<const HttpRequest>(std::move(request))](
                  ModelApi& api, const std::shared_ptr<Exchange>& leased) {
                (api.*route.answer)(*request, leased);
              });
}

HttpReply Api::page(const HttpRequest&) {
  return {.body = std::string(kPage),
          .type = "text/html; charset=utf-8",
          .headers = {{"Content-Security-Policy",
                       "default-src 'none'; script-src 'unsafe-inline'; style-src "
                       "'unsafe-inline'; connect-src 'self'; img-src data:"},
                      {"X-Content-Type-Options", "nosniff"}}};
}

HttpReply Api::health(const HttpRequest&) {
  const bool ready = ready_ && !models_.failure();
  return {.status = ready ? 200 : 503, .body = dump({{"live", true}, {"ready", ready}})};
}

HttpReply Api::metrics(const HttpRequest&) {
  return {.body = models_.metrics(), .type = "text/plain; version=0.0.4; charset=utf-8"};
}

HttpReply Api::explain(const HttpRequest&) {
  return {.body = models_.explanation()};
}

HttpReply Api::models(const HttpRequest&) {
  return {.body = dump({{"object", "list"}, {"data", models_.describe()}})};
}

HttpReply Api::one_model(const HttpRequest& request) {
  const std::string name = without_percent(
      std::string_view(request.path).substr(std::string_view("/v1/models/").size()));
  const Json found = name.empty() ? Json() : models_.describe(name);
  return found.is_null() ? to_reply(unknown_model(models_.names()))
                         : HttpReply{.body = dump(found)};
}

}  // namespace moracle::serve
