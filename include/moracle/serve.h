// A model behind HTTP, with OpenAI's interface (docs/serving.md).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "moracle/base.h"
#include "moracle/checkpoint.h"
#include "moracle/model.h"

namespace moracle MORACLE_API {

/// What a program sets. `moracle serve` has more options.
struct ServeOptions {
  std::string host = "127.0.0.1";  ///< address to listen on; "0.0.0.0": all networks
  uint16_t port = 8000;            ///< 0: any free port
  std::string name = "model";      ///< of the model in requests
  std::string api_key = "";        ///< that requests must send; empty: none
  int64_t max_running = 64;        ///< sequences in one step
  int64_t max_waiting = 256;       ///< sequences in the queue; more get status 429
  double request_seconds = 0;      ///< time limit of a request; 0: none
  Speculation speculation = {};    ///< of every sequence
};

/// A model and the server that answers requests with it, on threads of its own.
class ModelServer {
 public:
  /// Loads the model, then listens. `model.cache_bytes` is the memory for keys and values of all
  /// sequences. Errors: those of Model::load and of the tokenizer; a cache without space for one
  /// sequence; an address that is in use (kIo); a build without Boost (kUnsupported).
  static Result<ModelServer> start(const Checkpoint& checkpoint, ModelOptions model,
                                   const ServeOptions& options = {});
  ModelServer(ModelServer&&) noexcept;
  ModelServer& operator=(ModelServer&&) noexcept;
  /// Ends unfinished requests with status 503.
  ~ModelServer();

  uint16_t port() const;
  /// Refuses new requests for text and waits at most `seconds` for the others. False: some are
  /// unfinished.
  bool drain(double seconds);
  /// Why the model can no longer compute; nullopt: it can.
  std::optional<Error> failure() const;

 private:
  struct State;
  explicit ModelServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace MORACLE_API
