// The server's interface: from paths to functions.
#pragma once

#include <atomic>

#include "serve/api/api_error.h"
#include "serve/api/event_queue.h"
#include "serve/api/served_model.h"
#include "serve/engine/engine.h"
#include "serve/grammar/grammar_queue.h"

namespace moracle::serve {

struct ApiOptions {
  std::string api_key;         ///< empty: none
  std::string allowed_origin;  ///< for browsers on other pages; empty: none
  double request_seconds = 0;  ///< time limit of a request; 0: none
};

struct GenerationRequest;

class Api {
 public:
  /// `model`, `engine` and `events` must outlive it. The engine flushes `events`.
  Api(const ServedModel& model, Engine& engine, EventQueue& events, ApiOptions options)
      : model_(model),
        engine_(engine),
        events_(events),
        options_(std::move(options)),
        grammars_(model.grammars) {}

  /// Answers one request. May be called from several threads.
  void handle(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  /// From now on /health says that the server is not ready.
  void stop_accepting() { ready_ = false; }
  /// Ends the requests whose schemas wait to be compiled. Call before the engine ends.
  void stop_compiling() { grammars_.stop(); }

 private:
  using Answering = void (Api::*)(const HttpRequest&, const std::shared_ptr<Exchange>&);
  struct Route {
    const char *method, *path;  // a path that ends with "/" is the beginning of longer ones
    Answering answer;
    bool is_public;  // needs no key
  };
  static std::span<const Route> routes();
  std::optional<ApiError> refusal(const HttpRequest& request, const Route& route) const;

  void page(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void health(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void metrics(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void explain(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void models(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void one_model(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  Json model_json(const std::string& name) const;
  void completions(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void chat_completions(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void tokenize(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void detokenize(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void reload(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void rebalance(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void load_adapter(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void unload_adapter(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void generate(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange,
                bool is_chat);
  void submit(GenerationRequest& request, const std::shared_ptr<Exchange>& exchange);

  const ServedModel& model_;
  Engine& engine_;
  EventQueue& events_;
  const ApiOptions options_;
  std::atomic<bool> ready_{true};
  GrammarQueue grammars_;
};

/// True if both texts are equal. The time depends only on the length of `given`.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

}  // namespace moracle::serve
