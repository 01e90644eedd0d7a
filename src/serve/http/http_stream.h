// A connection's byte stream: TCP, or TLS over it.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <memory>
#include <utility>

#include "serve/http/tls_context.h"

namespace moracle::serve {

/// An asynchronous stream for Boost.Beast. TLS is decided at run time, so that a session is one
/// class.
class HttpStream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;
  using Failure = boost::beast::error_code;

  /// `tls`: null for plain TCP; must outlive the stream.
  HttpStream(boost::asio::ip::tcp::socket socket, TlsContext* tls);
  executor_type get_executor() { return tcp_.get_executor(); }
  boost::asio::ip::tcp::socket& socket() { return tcp_.socket(); }
  bool is_tls() const {
#ifdef MORACLE_WITH_TLS
    return tls_ != nullptr;
#else
    return false;
#endif
  }
  void expires_after(std::chrono::nanoseconds time) {
    tcp_.expires_after(time);
  }
  void close() {
    tcp_.close();
  }

  /// Calls `done(failure)` after the TLS handshake, or at once.
  template <class Done>
  void async_handshake(Done&& done) {
#ifdef MORACLE_WITH_TLS
    if (tls_)
      return tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Done>(done));
#endif
    done(Failure());
  }
  /// Ends TLS: without its last message a client cannot tell the end from an attack.
  template <class Done>
  void async_shutdown(Done&& done) {
#ifdef MORACLE_WITH_TLS
    if (tls_) return tls_->async_shutdown(std::forward<Done>(done));
#endif
    done(Failure());
  }
  template <class Buffers, class Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
#ifdef MORACLE_WITH_TLS
    if (tls_) {
      tls_->async_read_some(buffers, std::forward<Handler>(handler));
      return;
    }
#endif
    tcp_.async_read_some(buffers, std::forward<Handler>(handler));
  }
  template <class Buffers, class Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
#ifdef MORACLE_WITH_TLS
    if (tls_) {
      tls_->async_write_some(buffers, std::forward<Handler>(handler));
      return;
    }
#endif
    tcp_.async_write_some(buffers, std::forward<Handler>(handler));
  }

 private:
  boost::beast::tcp_stream tcp_;
#ifdef MORACLE_WITH_TLS
  std::unique_ptr<boost::asio::ssl::stream<boost::beast::tcp_stream&>> tls_;
#endif
};

}  // namespace moracle::serve
