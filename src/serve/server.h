// The server: engine, API and HTTP.
#pragma once

#include "serve/api/api.h"
#include "serve/http/http.h"

namespace moracle::serve {

struct ServerOptions {
  /// Folder with the grammar engine's Python packages; empty: the build's folder, if it exists.
  std::string grammar_folder;
  EngineOptions engine;
  ApiOptions api;
  HttpOptions http;
};

class Server {
 public:
  /// Starts listening. `model` must outlive the server, which is its only user. Errors: those of
  /// Engine::start and HttpServer::start; of GrammarEngine::start if a folder is given.
  static Result<std::unique_ptr<Server>> start(Model& model, ServedModel served,
                                               const ServerOptions& options);
  /// Stops; unfinished requests get status 503.
  ~Server();

  uint16_t port() const { return http_->port(); }
  /// Rejects new completions, and waits at most `seconds` for running ones. False: some are
  /// unfinished.
  bool drain(double seconds);
  /// See Engine::failure.
  std::optional<Error> failure() const { return engine_->failure(); }

 private:
  explicit Server(ServedModel served) : served_(std::move(served)) {}

  const ServedModel served_;
  EventQueue events_;
  std::unique_ptr<HttpServer> http_;  // declared before the engine, whose jobs hold connections
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Api> api_;
};

}  // namespace moracle::serve
