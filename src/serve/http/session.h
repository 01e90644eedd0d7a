// One keep-alive connection: reads a request, calls the handler, writes the reply, repeats.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <optional>

#include "serve/http/body_bytes.h"
#include "serve/http/http_stream.h"
#include "serve/http/request_head.h"

namespace moracle::serve {

/// State shared by all connections.
struct SessionContext {
  HttpOptions options;
  HttpHandler handler;
  boost::asio::thread_pool& workers;
  TlsContext* tls = nullptr;  // null: HTTP
  /// Serves the requests of one connection in order.
  boost::asio::strand<boost::asio::thread_pool::executor_type> large_bodies{workers.get_executor()};
  std::atomic<int64_t> num_connections{0}, num_answering{0}, body_bytes{0};
  std::atomic<bool> stopping{false};
};

/// All functions run on the I/O thread.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(boost::asio::ip::tcp::socket socket, SessionContext& context);
  ~Session();
  void start();

  /// The functions of Exchange, for request number `request` of this connection.
  void reply(uint64_t request, HttpReply&& reply);
  void start_stream(uint64_t request, HttpReply&& head);
  void write(uint64_t request, const std::string& text);
  void end(uint64_t request);
  void on_leave(uint64_t request, std::function<void()> left);
  HttpStream& stream() { return stream_; }
  /// See Exchange::left. Thread-safe.
  bool left() const { return closed_ || context_.stopping; }

 private:
  using Failure = boost::beast::error_code;
  void read_header();
  void take_header();
  void read_body();
  void continue_body();
  void handle();
  void refuse(const Failure& failure);
  void refuse(HttpReply&& reply);
  void watch();
  void watch_tls();
  bool is_open(uint64_t request) const { return request == request_ && !closed_; }
  void send_head(const HttpReply& head, bool chunked);
  void flush();
  void next_request();
  void discard();
  void close();
  void close_cleanly();
  void begin_answer();
  void answered();

  SessionContext& context_;
  HttpStream stream_;
  std::optional<boost::asio::steady_timer> watching_;  // of watch_tls()
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  std::function<void(uint64_t, boost::beast::string_view, Failure&)> on_chunk_;  // of parser_
  uint64_t request_ = 0;  // number of the current request
  HttpRequest head_;
  std::shared_ptr<BodyBytes> body_bytes_;
  bool keep_alive_ = false, is_http_1_0_ = false, is_head_ = false;
  bool unread_ = false;  // the client may still send the body of a rejected request
  bool answering_ = false, streaming_ = false, ended_ = false, writing_ = false;
  std::atomic<bool> closed_{false};
  std::string unsent_, sending_;
  std::function<void()> on_leave_;
};

}  // namespace moracle::serve
