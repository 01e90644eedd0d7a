// Handlers of the paths that change the model.
#include "base/try.h"
#include "serve/api/model_api.h"

namespace moracle::serve {
namespace {

const std::string kChangeBody;

std::function<void(const Status&)> answer_to(std::shared_ptr<Exchange> exchange) {
  return [exchange = std::move(exchange)](const Status& done) {
    if (done) return exchange->reply({.body = R"({"done":true})"});
    exchange->reply(to_reply(api_error(done.error())));
  };
}

}  // namespace

void ModelApi::reload(const HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
  engine_.reload(model_.folder, [this, exchange](const Status& done) {
    if (done) return exchange->reply({.body = R"({"reloaded":true})"});
    ApiError error = api_error(done.error());
    const bool is_lost = engine_.failure().has_value();
    error.status = is_lost ? 503 : 500;
    if (!is_lost) error.message = "the old weights stay in use: " + error.message;
    exchange->reply(to_reply(error));
  });
}

void ModelApi::rebalance(const HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
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

void ModelApi::load_adapter(const HttpRequest& http, const std::shared_ptr<Exchange>& exchange) {
  const auto read = [&]() -> Status {
    MORACLE_TRY(const nlohmann::json value, parse_body(http.body));
    const JsonField body(value, kChangeBody);
    MORACLE_TRY(const std::string name, body["lora_name"].text());
    MORACLE_TRY(const std::string path, body["lora_path"].text());
    if (name == model_.name) return body["lora_name"].bad("a name other than the model's");
    model_.adapters->load(name, path, model_.options, model_.folder, engine_, answer_to(exchange));
    return {};
  };
  if (const Status done = read(); !done) exchange->reply(to_reply(api_error(done.error())));
}

void ModelApi::unload_adapter(const HttpRequest& http, const std::shared_ptr<Exchange>& exchange) {
  const auto read = [&]() -> Status {
    MORACLE_TRY(const nlohmann::json value, parse_body(http.body));
    MORACLE_TRY(const std::string name, JsonField(value, kChangeBody)["lora_name"].text());
    return model_.adapters->unload(name, engine_);
  };
  answer_to(exchange)(read());
}

}  // namespace moracle::serve
