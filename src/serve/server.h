// The server: models, API and HTTP.
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
  int64_t model_memory = 0;  ///< of models that are loaded at first use, together; 0: no limit
};

class Server {
 public:
  /// Starts listening. `model` must outlive the server, which is its only user. Errors: those of
  /// RunningModel::start and HttpServer::start.
  static Result<std::unique_ptr<Server>> start(Model& model, ServedModel served,
                                               const ServerOptions& options);
  /// The same with models that are loaded when a request names them. Errors: those of
  /// HttpServer::start; two equal names.
  static Result<std::unique_ptr<Server>> start(std::vector<ModelSource> sources,
                                               const ServerOptions& options);
  /// Stops; unfinished requests get status 503.
  ~Server();

  uint16_t port() const { return http_->port(); }
  /// Rejects new completions, and waits at most `seconds` for running ones. False: some are
  /// unfinished.
  bool drain(double seconds);
  /// See Engine::failure.
  std::optional<Error> failure() const { return models_.failure(); }

 private:
  explicit Server(const ServerOptions& options) : models_(shared_, options.model_memory) {
    shared_.request_seconds = options.api.request_seconds;
  }
  Status listen(const ServerOptions& options);

  SharedState shared_;
  ModelSet models_;                   // outlives the connections, which may hold a model
  std::unique_ptr<HttpServer> http_;  // outlives the engines, whose jobs hold connections
  std::unique_ptr<Api> api_;
};

}  // namespace moracle::serve
