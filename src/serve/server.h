// The server: engine, interface and HTTP together.
#pragma once

#include "serve/api/api.h"
#include "serve/http/http.h"

namespace moracle::serve {

struct ServerOptions {
  /// Folder with the Python packages of the grammar engine; empty: that of the build, if it is
  /// there.
  std::string grammar_folder;
  EngineOptions engine;
  ApiOptions api;
  HttpOptions http;
};

class Server {
 public:
  /// Listens. `model` must outlive the server and belong to it alone. Errors: those of
  /// Engine::start and HttpServer::start; of GrammarEngine::start if a folder is given.
  static Result<std::unique_ptr<Server>> start(Model& model, ServedModel served,
                                               const ServerOptions& options);
  /// Ends unfinished requests with status 503.
  ~Server();

  uint16_t port() const { return http_->port(); }
  /// Refuses new requests for text, and waits at most `seconds` for the others. False: some are
  /// unfinished.
  bool drain(double seconds);
  /// See Engine::failure.
  std::optional<Error> failure() const { return engine_->failure(); }

 private:
  explicit Server(ServedModel served) : served_(std::move(served)) {}

  const ServedModel served_;
  EventQueue events_;
  std::unique_ptr<HttpServer> http_;  // outlives the engine, whose jobs hold connections
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Api> api_;
};

}  // namespace moracle::serve
