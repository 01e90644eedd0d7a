// HTTP types of the API, independent of the HTTP library.
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
  std::string query;         ///< after the '?'; empty: none
  std::string host, origin, authorization, api_key, encoding;  ///< headers; empty: absent
  std::string body;
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  HttpHeaders headers;  ///< additional headers
};

/// Writes the reply to a request: one reply(), or start_stream(), write() and end(). All functions
/// are thread-safe and do not block. After a disconnect they do nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void reply(HttpReply reply) = 0;
  /// Starts a streamed reply. Ignores `head.body`.
  virtual void start_stream(HttpReply head) = 0;
  virtual void write(std::string text) = 0;
  virtual void end() = 0;
  /// Registers `left`: called once, on the I/O thread, if the client disconnects before the end of
  /// the reply.
  virtual void on_leave(std::function<void()> left) = 0;
  /// True if the client has disconnected or the server stops: cancel the work.
  virtual bool left() const = 0;
  /// Runs `work` on the I/O thread, in call order.
  virtual void post(std::function<void()> work) = 0;
  /// Adds a field to the request's line in the log: its value as JSON. Nothing without a log.
  virtual void log(const std::string&, std::string) {}
};

struct HttpHandler {
  /// Called on the I/O thread when the header has arrived; must be fast. A returned reply ends the
  /// request, and its body is not read.
  std::function<std::optional<HttpReply>(const HttpRequest&)> at_header;
  /// Called on a worker thread with the complete request.
  std::function<void(HttpRequest, std::shared_ptr<Exchange>)> answer;
  /// Makes the reply to a request whose body is too large or that the server has no memory for.
  std::function<HttpReply(const HttpRequest&, int status, const std::string& message)> refuse;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;             ///< 0: any free port
  int64_t max_connections = 4096;   ///< beyond it: status 503
  uint64_t max_body = 8ull << 20;   ///< bytes
  uint32_t max_header = 16u << 10;  ///< bytes; also of all chunk extensions, and of the trailers
  int64_t max_unsent = 4 << 20;     ///< backpressure limit: bytes queued for a slow client
  double idle_seconds = 120;        ///< timeout for a header, also between two requests
  double transfer_seconds = 30;     ///< timeout for a body, and for each write of a reply
  HttpHeaders headers;              ///< added to every reply
  std::string tls_cert, tls_key;    ///< files in PEM: HTTPS instead of HTTP; empty: none
};

/// An HTTP/1.1 server: one I/O thread for all connections, two worker threads for the handler.
/// Requests with bodies above 64 KiB run one at a time, so that one worker stays free. Together
/// these bodies may use the memory of eight maximum-size bodies; beyond it: status 503.
class HttpServer {
 public:
  virtual ~HttpServer() = default;
  /// Flushes running replies for at most two seconds, then stops the threads. Exchange::left() is
  /// true from then on. Destroy the server after the last Exchange.
  virtual void stop() = 0;
  virtual uint16_t port() const = 0;
  virtual int64_t num_connections() const = 0;

  /// Checks the files of TLS. Errors: those of start() about them.
  static Status check_tls(const HttpOptions& options);
  /// Errors: kUnsupported in a build without Boost.
  static Status available();
  /// Listens and starts the threads. Errors: kIo for an address that is in use or does not exist;
  /// those of available(); files of TLS that do not fit.
  static Result<std::unique_ptr<HttpServer>> start(const HttpOptions& options, HttpHandler handler);
};

}  // namespace moracle::serve
