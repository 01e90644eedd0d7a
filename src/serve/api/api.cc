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

// "a%2Fb" as "a/b". A percent sign without two digits stays.
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
      {"GET", "/", &Api::page, true},
      {"GET", "/health", &Api::health, true},
      {"GET", "/metrics", &Api::metrics, false},
      {"GET", "/explain", &Api::explain, false},
      {"GET", "/v1/models", &Api::models, false},
      {"GET", "/v1/models/", &Api::one_model, false},
      {"POST", "/v1/completions", &Api::completions, false},
      {"POST", "/v1/chat/completions", &Api::chat_completions, false},
      {"POST", "/tokenize", &Api::tokenize, false},
      {"POST", "/detokenize", &Api::detokenize, false},
      {"POST", "/reload", &Api::reload, false},
      {"POST", "/rebalance", &Api::rebalance, false},
      {"POST", "/v1/load_lora_adapter", &Api::load_adapter, false},
      {"POST", "/v1/unload_lora_adapter", &Api::unload_adapter, false},
  };
  return kRoutes;
}

// A page of another site must not use this server through a visitor's browser. Browsers name the
// site in Origin.
std::optional<ApiError> Api::refusal(const HttpRequest& request, const Route& route) const {
  const bool is_own_page = request.origin.empty() || request.origin == "http://" + request.host ||
                           request.origin == "https://" + request.host;
  if (!is_own_page && request.origin != options_.allowed_origin) {
    return ApiError{.status = 403,
                    .message = "requests from other web pages are off (--allow-origin)",
                    .code = "origin_not_allowed"};
  }
  if (route.is_public || options_.api_key.empty()) return {};
  if (equal_in_constant_time(request.authorization, "Bearer " + options_.api_key)) return {};
  return ApiError{.status = 401,
                  .message = "needs the header Authorization: Bearer with the server's key",
                  .code = "invalid_api_key"};
}

void Api::handle(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  if (request.method == "OPTIONS" && !options_.allowed_origin.empty()) {
    return exchange->reply(
        {.status = 204,
         .headers = {{"Access-Control-Allow-Origin", options_.allowed_origin},
                     {"Access-Control-Allow-Methods", "GET, POST"},
                     {"Access-Control-Allow-Headers", "Authorization, Content-Type"}}});
  }
  bool knows_path = false;
  for (const Route& route : routes()) {
    const std::string_view path = route.path;
    const bool is_prefix = path.size() > 1 && path.ends_with('/');
    if (is_prefix ? !request.path.starts_with(path) : request.path != path) continue;
    knows_path = true;
    const bool reads = request.method == "HEAD" && std::string_view(route.method) == "GET";
    if (request.method != route.method && !reads) continue;
    if (const auto refused = refusal(request, route)) return exchange->reply(to_reply(*refused));
    if (!request.encoding.empty() && request.encoding != "identity") {
      return exchange->reply(to_reply({.status = 415,
                                       .message = "bodies must not have a Content-Encoding",
                                       .code = "unsupported_encoding"}));
    }
    return (this->*route.answer)(request, exchange);
  }
  exchange->reply(to_reply({.status = knows_path ? 405 : 404,
                            .message = knows_path ? "this path has another method" : "no such path",
                            .code = knows_path ? "method_not_allowed" : "unknown_url"}));
}

void Api::page(const HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
  exchange->reply({.body = std::string(kPage),
                   .type = "text/html; charset=utf-8",
                   .headers = {{"Content-Security-Policy",
                                "default-src 'none'; script-src 'unsafe-inline'; style-src "
                                "'unsafe-inline'; connect-src 'self'; img-src data:"},
                               {"X-Content-Type-Options", "nosniff"}}});
}

void Api::health(const HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
  const bool ready = ready_ && !engine_.failure();
  exchange->reply({.status = ready ? 200 : 503, .body = dump({{"live", true}, {"ready", ready}})});
}

void Api::metrics(const HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
  exchange->reply(
      {.body = engine_.metrics().text(), .type = "text/plain; version=0.0.4; charset=utf-8"});
}

void Api::explain(const HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
  exchange->reply({.body = model_.explanation});
}

Json Api::model_json(const std::string& name) const {
  return {{"id", name},
          {"object", "model"},
          {"created", 0},
          {"owned_by", "moracle"},
          {"parent", name == model_.name ? Json() : Json(model_.name)},
          {"max_model_len", model_.max_context}};
}

void Api::models(const HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
  Json data = Json::array({model_json(model_.name)});
  for (const std::string& name : model_.adapters->names()) data.push_back(model_json(name));
  exchange->reply({.body = dump({{"object", "list"}, {"data", data}})});
}

void Api::one_model(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  const std::string name = without_percent(
      std::string_view(request.path).substr(std::string_view("/v1/models/").size()));
  if (name != model_.name && !model_.adapters->find(name))
    return exchange->reply(to_reply(unknown_model(model_.name)));
  exchange->reply({.body = dump(model_json(name))});
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
    if (error.status == 500) error.message = "experts stay where they are: " + error.message;
    exchange->reply(to_reply(error));
  });
}

}  // namespace moracle::serve
