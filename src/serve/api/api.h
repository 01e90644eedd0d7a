// The server's interface: from paths to functions.
#pragma once

#include <atomic>

#include "serve/api/api_error.h"
#include "serve/api/event_queue.h"
#include "serve/api/origin_policy.h"
#include "serve/api/served_model.h"
#include "serve/engine/engine.h"
#include "serve/grammar/grammar_queue.h"

namespace moracle::serve {

struct ApiOptions {
  std::string host = "127.0.0.1";  ///< the address on which the server listens
  std::string api_key;             ///< empty: none
  std::string allowed_origin;      ///< for browsers on other pages; empty: none
  double request_seconds = 0;      ///< time limit of a request; 0: none
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
        origin_policy_(options_.host, options_.allowed_origin),
        grammars_(model.grammars) {}

  /// Answers all requests that read, and those that are refused for their header. Empty: answer()
  /// needs the body.
  std::optional<HttpReply> at_header(const HttpRequest& request);
  /// Answers one request. May be called from several threads.
  void answer(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  /// From now on /health says that the server is not ready.
  void stop_accepting() { ready_ = false; }
  /// Ends the requests whose schemas wait to be compiled. Call before the engine ends.
  void stop_compiling() { grammars_.stop(); }

 private:
  struct Route {
    const char* path;  // one that ends with "/" is the beginning of longer ones
    HttpReply (Api::*read)(const HttpRequest&);  // for GET and HEAD; else null
    void (Api::*answer)(const HttpRequest&, const std::shared_ptr<Exchange>&);  // for POST
    bool is_public;                                                             // needs no key
  };
  static std::span<const Route> routes();
  static const Route* find(const HttpRequest& request, bool& knows_path);
  std::optional<ApiError> refusal(const HttpRequest& request, const Route& route) const;

  HttpReply page(const HttpRequest& request);
  HttpReply health(const HttpRequest& request);
  HttpReply metrics(const HttpRequest& request);
  HttpReply explain(const HttpRequest& request);
  HttpReply models(const HttpRequest& request);
  HttpReply one_model(const HttpRequest& request);
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
  const OriginPolicy origin_policy_;
  std::atomic<bool> ready_{true};
  GrammarQueue grammars_;
};

/// True if both texts are equal. The time depends only on the length of `given`.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

}  // namespace moracle::serve
