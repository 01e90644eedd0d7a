// HTTP without a library: what the server's interface sees of a request.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moracle/base.h"

namespace moracle::serve {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method, path;  ///< "POST", "/v1/completions"; without the query
  std::string host, origin, authorization, encoding;  ///< headers; empty: not sent
  std::string body;
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  HttpHeaders headers;  ///< further ones
};

/// A request that is being answered: by one reply(), or by start_stream(), write() and end().
/// Every function may be called from any thread and returns at once. After the client has left,
/// they do nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void reply(HttpReply reply) = 0;
  /// Starts a reply whose body comes in pieces. `head.body` is ignored.
  virtual void start_stream(HttpReply head) = 0;
  virtual void write(std::string text) = 0;
  virtual void end() = 0;
  /// Calls `left` once, on the I/O thread, if the client leaves before the end of the reply.
  virtual void on_leave(std::function<void()> left) = 0;
  /// Whether the client has left or the server stops: work for this request is in vain.
  virtual bool left() const = 0;
  /// Runs `work` on the I/O thread, in the order of the calls.
  virtual void post(std::function<void()> work) = 0;
};

struct HttpHandler {
  /// Called on the I/O thread with a request without its body, so that it must be quick. A reply
  /// answers the request, whose body is not read.
  std::function<std::optional<HttpReply>(const HttpRequest&)> at_header;
  /// Called on a worker thread with the whole request.
  std::function<void(HttpRequest, std::shared_ptr<Exchange>)> answer;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;             ///< 0: any free port
  int64_t max_connections = 4096;   ///< more are refused with status 503
  uint64_t max_body = 8ull << 20;   ///< bytes
  uint32_t max_header = 16u << 10;  ///< bytes; also of all chunk extensions, and of the trailers
  int64_t max_unsent = 4 << 20;     ///< bytes of a reply that a slow client has not taken
  double idle_seconds = 120;        ///< for a header, also between two requests
  double transfer_seconds = 30;     ///< for a body, and for each piece of a reply
  HttpHeaders headers;              ///< of every reply
};

/// An HTTP/1.1 server: one thread for all connections, two workers for the handler. Bodies above
/// 64 KiB are answered one after another, so that a worker is left for the others. All such bodies
/// have at most the memory of eight of the largest; more get status 503.
class HttpServer {
 public:
  virtual ~HttpServer() = default;
  /// Ends the threads, after the replies that are being sent (at most two seconds). Exchanges that
  /// a worker answers have left() from now on. Destroy the server after the last Exchange.
  virtual void stop() = 0;
  virtual uint16_t port() const = 0;
  virtual int64_t num_connections() const = 0;

  /// Errors: kUnsupported in a build without Boost.
  static Status available();
  /// Listens and starts the threads. Errors: kIo for an address that is in use or does not exist;
  /// those of available().
  static Result<std::unique_ptr<HttpServer>> start(const HttpOptions& options, HttpHandler handler);
};

}  // namespace moracle::serve
