// Serves a model for a moment: server MODEL
#include <moracle/serve.h>

#include <cstdio>

int main(int, char** argv) {
  const auto checkpoint = moracle::Checkpoint::open(argv[1]);
  if (!checkpoint) return 1;
  moracle::ModelOptions model;
  model.cache_bytes = 64 << 20;
  const auto server = moracle::ModelServer::start(*checkpoint, model, {.port = 0});
  // A build without Boost says so.
  if (!server) {
    std::printf("%s\n", server.error().to_string().c_str());
    return server.error().kind == moracle::ErrorKind::kUnsupported ? 0 : 1;
  }
  std::printf("port %s\n", server->port() > 0 ? "open" : "missing");
}
