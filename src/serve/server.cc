#include "serve/server.h"

#include <algorithm>

#include "base/try.h"

namespace moracle::serve {

Result<std::unique_ptr<Server>> Server::start(Model& model, ServedModel served,
                                              const ServerOptions& options) {
  served.options.read_adapters.clear();  // `adapters` owns them until they are unloaded
  served.vocab_size = model.vocab_size();
  served.max_context = model.max_context();
  served.excluded_ids = served.tokenizer.ids_without_token(model.vocab_size());
  std::vector<int32_t> tag_ids;
  const auto add_tags = [&](const std::vector<int32_t>& ids) {
    const std::vector<int32_t>& stops = served.generation.eos_ids;
    for (const int32_t id : ids) {
      if (std::find(stops.begin(), stops.end(), id) == stops.end()) tag_ids.push_back(id);
    }
  };
  if (served.dialect.format) add_tags(special_tags(*served.dialect.format, served.tokenizer));
  if (served.reasoning) add_tags(special_ids(served.reasoning->tags, served.tokenizer));
  auto grammars = GrammarEngine::start(served.tokenizer, served.vocab_size,
                                       served.generation.eos_ids, options.grammar_folder, tag_ids);
  if (!grammars && !options.grammar_folder.empty()) return grammars.error();
  if (grammars)
    served.grammars = *std::move(grammars);
  else
    served.no_grammars = grammars.error().to_string();
  std::unique_ptr<Server> server(new Server(std::move(served)));
  EngineOptions engine = options.engine;
  engine.num_adapters = static_cast<int32_t>(server->served_.adapters->names().size());
  engine.overlaps_answers = model.device().platform() != Platform::kCpu;
  engine.rebalance.folder = server->served_.folder;
  engine.flush = [events = &server->events_] { events->flush(); };
  MORACLE_TRY(server->engine_, Engine::start(model, server->served_.tokenizer, engine));
  ApiOptions api_options = options.api;
  api_options.host = options.http.host;
  server->api_ = std::make_unique<Api>(server->served_, *server->engine_, server->events_,
                                       std::move(api_options));
  HttpOptions http = options.http;
  if (const std::string& origin = options.api.allowed_origin; !origin.empty()) {
    // CORS: a browser shows replies only to pages that these headers name.
    http.headers = {{"Access-Control-Allow-Origin", origin}, {"Vary", "Origin"}};
  }
  Api* const api = server->api_.get();
  MORACLE_TRY(
      server->http_,
      HttpServer::start(
          http, {.at_header = [api](const auto& request) { return api->at_header(request); },
                 .answer = [api](const auto& request,
                                 const auto& exchange) { api->answer(request, exchange); },
                 .refuse =
                     [api](const auto& request, int status, const auto& message) {
                       return api->refuse(request, status, message);
                     }}));
  return server;
}

Server::~Server() {
  if (api_) api_->stop_compiling();
  if (engine_) engine_->stop();  // its last replies are still being sent
  if (http_) http_->stop();
  engine_.reset();
}

bool Server::drain(double seconds) {
  api_->stop_accepting();
  return engine_->drain(seconds);
}

}  // namespace moracle::serve
