#include "serve/api/api.h"

#include <charconv>

#include "base/text.h"
#include "serve/api/page.h"

namespace moracle::serve {

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() != secret.size();
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = secret.empty() ? '\0' : secret[i % secret.size()];
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(other);
  }
  return difference == 0;
}

namespace {

// Decodes percent escapes: "a%2Fb" becomes "a/b". Keeps a '%' without two hexadecimal digits.
std::string without_percent(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    const char* const digits = text.data() + i + 1;
    const bool is_code = text[i] == '%' && i + 2 < text.size() &&
                         std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2;
    plain += is_code ? static_cast<char>(code) : text[i];
    if (is_code) i += 2;
  }
  return plain;
}

}  // namespace

std::span<const Api::Route> Api::routes() {
  static constexpr Route kRoutes[] = {
      {"/", &Api::page, nullptr, true},
      {"/health", &Api::health, nullptr, true},
      {"/metrics", &Api::metrics, nullptr, false},
      {"/explain", &Api::explain, nullptr, false},
      {"/v1/models", &Api::models, nullptr, false},
      {"/v1/models/", &Api::one_model, nullptr, false},
      {"/v1/completions", nullptr, &Api::completions, false},
      {"/v1/chat/completions", nullptr, &Api::chat_completions, false},
      {"/v1/responses", nullptr, &Api::responses, false},
      {"/v1/responses/", &Api::one_response, nullptr, false},
      {"/v1/messages", nullptr, &Api::messages, false},
      {"/v1/messages/count_tokens", nullptr, &Api::count_tokens, false},
      {"/tokenize", nullptr, &Api::tokenize, false},
      {"/detokenize", nullptr, &Api::detokenize, false},
      {"/reload", nullptr, &Api::reload, false},
      {"/rebalance", nullptr, &Api::rebalance, false},
      {"/v1/load_lora_adapter", nullptr, &Api::load_adapter, false},
      {"/v1/unload_lora_adapter", nullptr, &Api::unload_adapter, false},
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
    if (route.read ? reads : request.method == "POST") return &route;
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
  if (!origin_policy_.may_use(request.host)) {
    return to_reply({.status = 403,
                     .message = "needs a Host header that names this server: localhost, 127.0.0.1, "
                                "[::1], the address of --host or the host of --allow-origin",
                     .code = "host_not_allowed"},
                    error_form(request.path));
  }
  if (request.method == "OPTIONS" && !options_.allowed_origin.empty()) {
    return HttpReply{.status = 204,
                     .headers = {{"Access-Control-Allow-Methods", "GET, POST"},
                                 {"Access-Control-Allow-Headers", "*, Authorization"}}};
  }
  bool knows_path = false;
  const Route* const route = find(request, knows_path);
  if (!route) {
    return to_reply(
        {.status = knows_path ? 405 : 404,
         .message = knows_path ? "this path does not support this method" : "no such path",
         .code = knows_path ? "method_not_allowed" : "unknown_url"},
        error_form(request.path));
  }
  if (const auto refused = refusal(request, *route))
    return to_reply(*refused, error_form(request.path));
  if (!route->read) return {};
  return (this->*route->read)(request);
}

HttpReply Api::refuse(const HttpRequest& request, int status, const std::string& message) const {
  return to_reply({.status = status, .message = message}, error_form(request.path));
}

void Api::answer(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  bool knows_path = false;
  (this->*find(request, knows_path)->answer)(request, exchange);
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
  const bool ready = ready_ && !engine_.failure();
  return {.status = ready ? 200 : 503, .body = dump({{"live", true}, {"ready", ready}})};
}

HttpReply Api::metrics(const HttpRequest&) {
  return {.body = engine_.metrics().text(), .type = "text/plain; version=0.0.4; charset=utf-8"};
}

HttpReply Api::explain(const HttpRequest&) {
  return {.body = model_.explanation};
}

Json Api::model_json(const std::string& name) const {
  return {{"id", name},
          {"object", "model"},
          {"created", 0},
          {"owned_by", "moracle"},
          {"parent", name == model_.name ? Json() : Json(model_.name)},
          {"max_model_len", model_.max_context}};
}

HttpReply Api::models(const HttpRequest&) {
  Json data = Json::array({model_json(model_.name)});
  for (const std::string& name : model_.adapters->names()) data.push_back(model_json(name));
  return {.body = dump({{"object", "list"}, {"data", data}})};
}

HttpReply Api::one_model(const HttpRequest& request) {
  const std::string name = without_percent(
      std::string_view(request.path).substr(std::string_view("/v1/models/").size()));
  if (name != model_.name && !model_.adapters->find(name))
    return to_reply(unknown_model(model_.name));
  return {.body = dump(model_json(name))};
}

HttpReply Api::one_response(const HttpRequest& request) {
  const auto found =
      responses_.find(request.path.substr(std::string_view("/v1/responses/").size()));
  if (found) return {.body = found->reply};
  return to_reply({.status = 404,
                   .message = "no stored response has this id; they expire, and the oldest are "
                              "evicted",
                   .code = "not_found"});
}

void Api::reload(const HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
  engine_.reload(model_.folder, [this, exchange](const Status& done) {
    if (done) return exchange->reply({.body = R"({"reloaded":true})"});
    ApiError error = api_error(done.error());
    const bool is_lost = engine_.failure().has_value();
    error.status = is_lost ? 503 : 500;
    if (!is_lost) error.message = "the old weights stay in use: " + error.message;
    exchange->reply(to_reply(error));
  });
}

void Api::rebalance(const HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
  engine_.rebalance([this, exchange](const Result<RebalanceReport>& done) {
    if (done) {
      return exchange->reply({.body = dump({{"moved_layers", done->layers},
                                            {"moved_experts", done->experts},
                                            {"imbalance_before", done->before},
                                            {"imbalance_after", done->after}})});
    }
    const bool is_off = done.error().kind == ErrorKind::kUnsupported;
    ApiError error = api_error(done.error());
    error.status = engine_.failure() ? 503 : is_off ? 400 : 500;
    if (error.status == 500) error.message = "the expert placement is unchanged: " + error.message;
    exchange->reply(to_reply(error));
  });
}

}  // namespace moracle::serve
