#include "serve/server.h"

#include <algorithm>

#include "base/printable.h"
#include "base/try.h"

namespace moracle::serve {

Result<std::unique_ptr<Server>> Server::start(Model& model, ServedModel served,
                                              const ServerOptions& options) {
  std::unique_ptr<Server> server(new Server(options));
  MORACLE_TRY(auto running,
              RunningModel::start(model, std::move(served),
                                  {options.grammar_folder, options.engine}, server->shared_));
  server->models_.keep(std::move(running));
  MORACLE_CHECK(server->listen(options));
  return server;
}

Result<std::unique_ptr<Server>> Server::start(std::vector<ModelSource> sources,
                                              const ServerOptions& options) {
  for (auto one = sources.begin(); one != sources.end(); ++one) {
    const bool is_twice = std::any_of(
        sources.begin(), one, [&](const ModelSource& other) { return other.name == one->name; });
    if (is_twice) {
      return Error{ErrorKind::kInvalidArgument, "", "model", "a name of its own for each model",
                   "two are " + quote(one->name)};
    }
  }
  std::unique_ptr<Server> server(new Server(options));
  server->models_.add(std::move(sources));
  MORACLE_CHECK(server->listen(options));
  return server;
}

Status Server::listen(const ServerOptions& options) {
  ApiOptions api_options = options.api;
  api_options.host = options.http.host;
  api_ = std::make_unique<Api>(models_, shared_.responses, std::move(api_options));
  HttpOptions http = options.http;
  if (const std::string& origin = options.api.allowed_origin; !origin.empty()) {
    // CORS: a browser shows replies only to pages that these headers name.
    http.headers = {{"Access-Control-Allow-Origin", origin}, {"Vary", "Origin"}};
  }
  Api* const api = api_.get();
  MORACLE_TRY(
      http_,
      HttpServer::start(
          http,
          {.at_header = [api](const auto& request) { return api->at_header(request); },
           .answer = [api](HttpRequest request,
                           const auto& exchange) { api->answer(std::move(request), exchange); },
           .refuse = [api](
                         const auto& request, int status,
                         const auto& message) { return api->refuse(request, status, message); }}));
  return {};
}

Server::~Server() {
  models_.stop();  // its last replies are still being sent
  if (http_) http_->stop();
  models_.clear();
}

bool Server::drain(double seconds) {
  api_->stop_accepting();
  return models_.drain(seconds);
}

}  // namespace moracle::serve
