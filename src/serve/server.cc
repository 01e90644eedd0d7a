#include "serve/server.h"

#include "base/try.h"

namespace moracle::serve {

Result<std::unique_ptr<Server>> Server::start(Model& model, ServedModel served,
                                              const ServerOptions& options) {
  served.vocab_size = model.vocab_size();
  served.max_context = model.max_context();
  served.excluded_ids = served.tokenizer.ids_without_token(model.vocab_size());
  auto grammars = GrammarEngine::start(served.tokenizer, served.vocab_size,
                                       served.generation.eos_ids, options.grammar_folder);
  if (!grammars && !options.grammar_folder.empty()) return grammars.error();
  if (grammars)
    served.grammars = *std::move(grammars);
  else
    served.no_grammars = grammars.error().to_string();
  std::unique_ptr<Server> server(new Server(std::move(served)));
  EngineOptions engine = options.engine;
  engine.num_adapters = static_cast<int32_t>(server->served_.adapters->names().size());
  engine.answers_later = model.device().platform() != Platform::kCpu;
  engine.rebalance.folder = server->served_.folder;
  engine.flush = [events = &server->events_] { events->flush(); };
  MORACLE_TRY(server->engine_, Engine::start(model, server->served_.tokenizer, engine));
  server->api_ =
      std::make_unique<Api>(server->served_, *server->engine_, server->events_, options.api);
  const auto handler = [api = server->api_.get()](const HttpRequest& request,
                                                  const std::shared_ptr<Exchange>& exchange) {
    api->handle(request, exchange);
  };
  MORACLE_TRY(server->http_, HttpServer::start(options.http, handler));
  return server;
}

Server::~Server() {
  if (api_) api_->stop_compiling();
  if (engine_) engine_->stop();  // its last replies still travel
  if (http_) http_->stop();
  engine_.reset();
}

bool Server::drain(double seconds) {
  api_->stop_accepting();
  return engine_->drain(seconds);
}

}  // namespace moracle::serve
