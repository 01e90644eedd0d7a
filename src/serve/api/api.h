// The server's HTTP API: routes paths to functions.
#pragma once

#include <atomic>

#include "serve/api/api_error.h"
#include "serve/api/event_queue.h"
#include "serve/api/origin_policy.h"
#include "serve/api/served_model.h"
#include "serve/dialects/generation_request.h"
#include "serve/dialects/response_store.h"
#include "serve/engine/engine.h"
#include "serve/grammar/grammar_queue.h"

namespace moracle::serve {

struct ApiOptions {
  std::string host = "127.0.0.1";  ///< listen address
  std::string api_key;             ///< empty: none
  std::string allowed_origin;      ///< CORS: web origin that may use the API; empty: none
  double request_seconds = 0;      ///< time limit of a request; 0: none
};

class Api {
 public:
  /// `model`, `engine` and `events` must outlive this object. The engine flushes `events`.
  Api(const ServedModel& model, Engine& engine, EventQueue& events, ApiOptions options)
      : model_(model),
        engine_(engine),
        events_(events),
        options_(std::move(options)),
        origin_policy_(options_.host, options_.allowed_origin),
        grammars_(model.grammars) {}

  /// Replies from the header alone: GET and HEAD requests, and rejections. Empty: call answer()
  /// with the body.
  std::optional<HttpReply> at_header(const HttpRequest& request);
  /// Replies to one request. Thread-safe.
  void answer(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  /// An error of the HTTP layer in the format of the request's path.
  HttpReply refuse(const HttpRequest& request, int status, const std::string& message) const;
  /// Makes /health report "not ready" from now on.
  void stop_accepting() { ready_ = false; }
  /// Cancels requests whose schemas wait to be compiled. Call before the engine stops.
  void stop_compiling() { grammars_.stop(); }

 private:
  struct Route {
    const char* path;                            // a path that ends with "/" matches by prefix
    HttpReply (Api::*read)(const HttpRequest&);  // for GET and HEAD; else null
    void (Api::*answer)(const HttpRequest&, const std::shared_ptr<Exchange>&);  // for POST
    bool is_public;  // requires no API key
  };
  static std::span<const Route> routes();
  static const Route* find(const HttpRequest& request, bool& knows_path);
  std::optional<ApiError> refusal(const HttpRequest& request, const Route& route) const;

  HttpReply page(const HttpRequest& request);
  HttpReply health(const HttpRequest& request);
  HttpReply metrics(const HttpRequest& request);
  HttpReply explain(const HttpRequest& request);
  HttpReply models(const HttpRequest& request);
  HttpReply one_response(const HttpRequest& request);
  HttpReply one_model(const HttpRequest& request);
  Json model_json(const std::string& name) const;
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
  EventQueue& events_;
  const ApiOptions options_;
  const OriginPolicy origin_policy_;
  std::atomic<bool> ready_{true};
  GrammarQueue grammars_;
  ResponseStore responses_;
};

/// Constant-time comparison: the time depends only on the length of `given`.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

}  // namespace moracle::serve
