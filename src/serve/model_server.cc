// The server as a public class.
#include "moracle/serve.h"

#include "base/try.h"
#include "serve/server.h"

namespace moracle {

struct ModelServer::State {
  Model model;
  std::unique_ptr<serve::Server> server;  // ends before the model
};

ModelServer::ModelServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
ModelServer::ModelServer(ModelServer&&) noexcept = default;
ModelServer& ModelServer::operator=(ModelServer&&) noexcept = default;
ModelServer::~ModelServer() = default;

Result<ModelServer> ModelServer::start(const Checkpoint& checkpoint, ModelOptions model,
                                       const ServeOptions& options) {
  MORACLE_CHECK(serve::HttpServer::available());
  if (model.cache_bytes <= 0) {
    return Error{ErrorKind::kInvalidArgument, "", "cache_bytes",
                 "memory for keys and values, in bytes", "it is 0"};
  }
  MORACLE_TRY(serve::ServedModel served, serve::ServedModel::open(checkpoint));
  served.name = options.name;
  served.options = model;
  served.options.progress = {};
  MORACLE_TRY(Model loaded, Model::load(checkpoint, model));
  auto state = std::make_unique<State>(State{std::move(loaded), nullptr});
  serve::ServerOptions server;
  server.http.host = options.host;
  server.http.port = options.port;
  server.api.api_key = options.api_key;
  server.api.request_seconds = options.request_seconds;
  server.engine.max_running = options.max_running;
  server.engine.max_waiting = options.max_waiting;
  server.engine.cache_bytes = model.cache_bytes;
  server.engine.speculation = options.speculation;
  MORACLE_TRY(state->server, serve::Server::start(state->model, std::move(served), server));
  return ModelServer(std::move(state));
}

uint16_t ModelServer::port() const {
  return state_->server->port();
}
bool ModelServer::drain(double seconds) {
  return state_->server->drain(seconds);
}
std::optional<Error> ModelServer::failure() const {
  return state_->server->failure();
}

}  // namespace moracle
