// The server's HTTP API: routes paths to functions.
#pragma once

#include <atomic>

#include "serve/api/origin_policy.h"
#include "serve/api/request_log.h"
#include "serve/model_set/model_set.h"

namespace moracle::serve {

struct ApiOptions {
  std::string host = "127.0.0.1";  ///< listen address
  std::string api_key;             ///< empty: none
  std::string allowed_origin;      ///< CORS: web origin that may use the API; empty: none
  double request_seconds = 0;      ///< time limit of a request; 0: none
  LogOptions log;
};

class Api {
 public:
  /// `models` and `responses` must outlive this object.
  Api(ModelSet& models, ResponseStore& responses, ApiOptions options)
      : models_(models),
        responses_(responses),
        options_(std::move(options)),
        origin_policy_(options_.host, options_.allowed_origin) {}

  /// Replies from the header alone: GET, HEAD and DELETE requests, and rejections. Empty: call
  /// answer() with the body.
  std::optional<HttpReply> at_header(const HttpRequest& request);
  /// Replies to one request. Thread-safe.
  void answer(HttpRequest request, const std::shared_ptr<Exchange>& exchange);
  /// An error of the HTTP layer in the format of the request's path.
  HttpReply refuse(const HttpRequest& request, int status, const std::string& message) const;
  /// Makes /health report "not ready" from now on.
  void stop_accepting() { ready_ = false; }

 private:
  struct Route {
    const char* path;                            // a path that ends with "/" matches by prefix
    HttpReply (Api::*read)(const HttpRequest&);  // for GET and HEAD; else null
    void (ModelApi::*answer)(const HttpRequest&, const std::shared_ptr<Exchange>&);  // for POST
    bool is_public;                                          // requires no API key
    HttpReply (Api::*remove)(const HttpRequest&) = nullptr;  // for DELETE
  };
  static std::span<const Route> routes();
  static const Route* find(const HttpRequest& request, bool& knows_path);
  std::optional<ApiError> refusal(const HttpRequest& request, const Route& route) const;
  std::optional<HttpReply> reply_to_header(const HttpRequest& request);

  HttpReply page(const HttpRequest& request);
  HttpReply health(const HttpRequest& request);
  HttpReply metrics(const HttpRequest& request);
  HttpReply explain(const HttpRequest& request);
  HttpReply models(const HttpRequest& request);
  HttpReply one_model(const HttpRequest& request);
  HttpReply one_response(const HttpRequest& request);
  HttpReply delete_response(const HttpRequest& request);

  ModelSet& models_;
  ResponseStore& responses_;
  const ApiOptions options_;
  const OriginPolicy origin_policy_;
  std::atomic<bool> ready_{true};
};

/// Constant-time comparison: the time depends only on the length of `given`.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

}  // namespace moracle::serve
