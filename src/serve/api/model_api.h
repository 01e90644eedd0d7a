// The POST paths of one model.
#pragma once

#include "serve/api/api_error.h"
#include "serve/api/event_queue.h"
#include "serve/dialects/generation_request.h"
#include "serve/dialects/response_store.h"
#include "serve/engine/engine.h"
#include "serve/grammar/grammar_queue.h"
#include "serve/model_set/served_model.h"

namespace moracle::serve {

/// What the models of a server share.
struct SharedState {
  EventQueue events;
  ResponseStore responses;
  double request_seconds = 0;  ///< time limit of a request; 0: none
};

class ModelApi {
 public:
  /// All must outlive this object. The engine flushes the events.
  ModelApi(const ServedModel& model, Engine& engine, SharedState& shared)
      : model_(model), engine_(engine), shared_(shared), grammars_(model.grammars) {}

  /// Handlers of the paths. Thread-safe.
  void completions(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void chat_completions(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void responses(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void messages(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void count_tokens(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void tokenize(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void detokenize(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void reload(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void rebalance(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void load_adapter(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void unload_adapter(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);

  /// The entry of /v1/models for the model, or for an adapter.
  Json describe(const std::string& name) const;
  /// True for the model's name and for those of its adapters.
  bool has(const std::string& name) const {
    return name == model_.name || model_.adapters->find(name).has_value();
  }
  const ServedModel& model() const { return model_; }
  std::string metrics() const { return engine_.metrics().text(); }
  /// Cancels requests whose schemas wait to be compiled. Call before the engine stops.
  void stop_compiling() { grammars_.stop(); }

 private:
  void generate(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange,
                Dialect dialect);
  // Parses the body. Empty: it is rejected, or names an unknown model.
  std::optional<nlohmann::json> read_body(const HttpRequest& request,
                                          const std::shared_ptr<Exchange>& exchange);
  Result<GenerationRequest> read(Dialect dialect, const nlohmann::json& body,
                                 const std::string& text, const Progress& progress) const;
  void submit(GenerationRequest& request, const std::shared_ptr<Exchange>& exchange);

  const ServedModel& model_;
  Engine& engine_;
  SharedState& shared_;
  GrammarQueue grammars_;
};

}  // namespace moracle::serve
