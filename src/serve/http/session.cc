#ifdef MORACLE_WITH_HTTP
#include "serve/http/session.h"

#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/bind_handler.hpp>
#include <boost/beast/http/read.hpp>
#include <cerrno>
#include <chrono>
#include <exception>

#include "base/text.h"

namespace moracle::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

// Forwards calls to the I/O thread. Keeps the session alive.
class SessionExchange : public Exchange {
 public:
  SessionExchange(std::shared_ptr<Session> session, uint64_t request)
      : session_(std::move(session)), request_(request) {}
  void reply(HttpReply reply) override {
    dispatch([reply = std::move(reply)](Session& s, uint64_t request) mutable {
      s.reply(request, std::move(reply));
    });
  }
  void start_stream(HttpReply head) override {
    dispatch([head = std::move(head)](Session& s, uint64_t request) mutable {
      s.start_stream(request, std::move(head));
    });
  }
  void write(std::string text) override {
    dispatch([text = std::move(text)](Session& s, uint64_t request) { s.write(request, text); });
  }
  void end() override {
    dispatch([](Session& s, uint64_t request) { s.end(request); });
  }
  void on_leave(std::function<void()> left) override {
    dispatch([left = std::move(left)](Session& s, uint64_t request) mutable {
      s.on_leave(request, std::move(left));
    });
  }
  bool left() const override { return session_->left(); }
  void post(std::function<void()> work) override {
    asio::post(session_->stream().get_executor(), std::move(work));
  }

 private:
  template <class Work>
  void dispatch(Work&& work) {
    asio::dispatch(session_->stream().get_executor(),
                   [session = session_, request = request_,
                    work = std::forward<Work>(work)]() mutable { work(*session, request); });
  }
  const std::shared_ptr<Session> session_;
  const uint64_t request_;
};

void run_handler(const HttpHandler& handler, HttpRequest&& request,
                 const std::shared_ptr<Exchange>& exchange) {
  if (exchange->left())
    return exchange->reply(handler.refuse(request, 503, "the server is stopping"));
  const HttpRequest head{.method = request.method, .path = request.path};
  try {
    handler.answer(std::move(request), exchange);
  } catch (const std::exception&) {  // out of memory
    exchange->reply(handler.refuse(head, 500, "the server is out of memory"));
  }
}

}  // namespace

Session::Session(asio::ip::tcp::socket socket, SessionContext& context)
    : context_(context),
      stream_(std::move(socket), context.tls),
      buffer_(context.options.max_header) {
  ++context_.num_connections;
}

Session::~Session() {
  answered();
  --context_.num_connections;
}

void Session::start() {
  stream_.expires_after(milliseconds(context_.options.transfer_seconds));
  stream_.async_handshake([self = shared_from_this()](const Failure& failure) {
    failure ? self->close() : self->read_header();
  });
}

void Session::read_header() {
  parser_.emplace();
  parser_->header_limit(context_.options.max_header);
  parser_->body_limit(context_.options.max_body);
  stream_.expires_after(milliseconds(context_.options.idle_seconds));
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](const Failure& failure, size_t) {
                            failure ? self->refuse(failure) : self->take_header();
                          });
}

void Session::take_header() {
  const auto& message = parser_->get();
  if (auto wrong = wrong_head(message)) return refuse(*std::move(wrong));
  ++request_;
  keep_alive_ = message.keep_alive();
  is_http_1_0_ = message.version() < 11;
  is_head_ = message.method() == http::verb::head;
  streaming_ = ended_ = false;
  unread_ = !parser_->is_done();
  head_ = read_head(message);
  if (auto reply = context_.handler.at_header(head_)) {
    keep_alive_ = keep_alive_ && !unread_;
    begin_answer();
    this->reply(request_, *std::move(reply));
  } else {
    read_body();
  }
}

void Session::read_body() {
  body_bytes_ = std::make_shared<BodyBytes>(context_.body_bytes,
                                            8 * static_cast<int64_t>(context_.options.max_body));
  if (parser_->is_done()) return handle();
  buffer_.reserve(context_.options.max_header);  // read size
  parser_->eager(true);
  on_chunk_ = [left = size_t{context_.options.max_header}](uint64_t, beast::string_view extension,
                                                           Failure& failure) mutable {
    if (extension.size() > left) failure = http::error::header_limit;
    left -= std::min(extension.size(), left);
  };
  parser_->on_chunk_header(on_chunk_);
  stream_.expires_after(milliseconds(context_.options.transfer_seconds));
  const auto read = [self = shared_from_this()](const Failure& failure, size_t) {
    failure ? self->close() : self->continue_body();
  };
  if (beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(stream_, asio::buffer(kContinue), read);
  } else {
    read({}, 0);
  }
}

void Session::continue_body() {
  http::async_read_some(
      stream_, buffer_, *parser_, [self = shared_from_this()](const Failure& failure, size_t) {
        if (failure) return self->refuse(failure);
        const auto size = static_cast<int64_t>(self->parser_->get().body().size());
        if (!self->body_bytes_->grow_to(size))
          return self->refuse(self->context_.handler.refuse(
              self->head_, 503, "too many request bytes in flight; try again later"));
        self->parser_->is_done() ? self->handle() : self->continue_body();
      });
}

void Session::handle() {
  HttpRequest request = std::move(head_);
  request.body = std::move(parser_->get().body());
  parser_.reset();
  const bool is_large = body_bytes_->is_large();
  unread_ = false;
  begin_answer();
  watch();
  auto work = [exchange = std::make_shared<SessionExchange>(shared_from_this(), request_),
               request = std::move(request), bytes = std::move(body_bytes_),
               &handler = context_.handler]() mutable {
    run_handler(handler, std::move(request), exchange);
  };
  if (is_large)
    asio::post(context_.large_bodies, std::move(work));
  else
    asio::post(context_.workers, std::move(work));
}

// Rejects malformed or oversized requests.
void Session::refuse(const Failure& failure) {
  const bool is_http = failure.category() == make_error_code(http::error::bad_value).category();
  if (!is_http || failure == http::error::end_of_stream || failure == http::error::partial_message)
    return close();
  const bool is_long_header =
      failure == http::error::header_limit || failure == http::error::buffer_overflow;
  const int status = failure == http::error::body_limit ? 413 : is_long_header ? 431 : 400;
  const std::string message = str("not a request that this server reads: ", failure.message());
  if (status != 413) return refuse(refusal(status, message));
  // The header is complete, so the path is known.
  refuse(context_.handler.refuse(read_head(parser_->get()), status, message));
}

// Replies, then closes the connection.
void Session::refuse(HttpReply&& reply) {
  ++request_;
  keep_alive_ = is_http_1_0_ = is_head_ = streaming_ = ended_ = false;
  unread_ = true;
  body_bytes_.reset();
  this->reply(request_, std::move(reply));
}

// Detects a disconnect while a request is being answered. Stops watching a client that pipelines
// more data.
void Session::watch() {
  if (stream_.is_tls()) return watch_tls();
  stream_.socket().async_wait(
      asio::ip::tcp::socket::wait_read,
      [self = shared_from_this(), request = request_](const Failure& failure) {
        if (failure || !self->is_open(request) || self->ended_) return;
        char byte = 0;
        const auto size =
            ::recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR))) return;
        self->close();
      });
}

// Bytes of TLS may be a message that ends it, so look for the end of the connection behind them.
void Session::watch_tls() {
  if (!watching_) watching_.emplace(stream_.get_executor());
  watching_->expires_after(std::chrono::milliseconds(250));
  watching_->async_wait([self = shared_from_this(), request = request_](const Failure& failure) {
    if (failure || !self->is_open(request) || self->ended_) return;
    pollfd state{self->stream_.socket().native_handle(), POLLRDHUP, 0};
    if (::poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
      return self->close();
    self->watch_tls();
  });
}

void Session::on_leave(uint64_t request, std::function<void()> left) {
  if (request != request_) return;
  if (closed_) return left();
  if (!ended_) on_leave_ = std::move(left);
}

void Session::send_head(const HttpReply& head, bool chunked) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(head.status));
  unsent_ += str("HTTP/1.1 ", head.status, " ", reason, "\r\nContent-Type: ", head.type, "\r\n");
  const auto add = [&](const HttpHeaders& headers) {
    for (const auto& [name, value] : headers) unsent_ += str(name, ": ", value, "\r\n");
  };
  add(head.headers);
  add(context_.options.headers);
  if (chunked)
    unsent_ += "Transfer-Encoding: chunked\r\nCache-Control: no-store\r\n";
  else if (!streaming_)
    unsent_ += str("Content-Length: ", head.body.size(), "\r\n");
  unsent_ += keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
}

void Session::reply(uint64_t request, HttpReply&& reply) {
  if (!is_open(request) || streaming_ || ended_) return;
  send_head(reply, false);
  if (!is_head_) unsent_ += reply.body;
  ended_ = true;
  flush();
}

void Session::start_stream(uint64_t request, HttpReply&& head) {
  if (!is_open(request) || streaming_ || ended_) return;
  streaming_ = true;
  keep_alive_ = keep_alive_ && !is_http_1_0_;  // without chunks, closing ends the body
  send_head(head, !is_http_1_0_);
  flush();
}

void Session::write(uint64_t request, const std::string& text) {
  if (!is_open(request) || !streaming_ || ended_ || text.empty()) return;
  if (is_http_1_0_) {
    unsent_ += text;
  } else {
    char size[20];
    const int digits = std::snprintf(size, sizeof size, "%zx\r\n", text.size());
    unsent_.append(size, digits).append(text).append("\r\n");
  }
  if (static_cast<int64_t>(unsent_.size()) > context_.options.max_unsent) return close();
  flush();
}

void Session::end(uint64_t request) {
  if (!is_open(request) || !streaming_ || ended_) return;
  if (!is_http_1_0_) unsent_ += "0\r\n\r\n";
  ended_ = true;
  flush();
}

void Session::flush() {
  if (writing_ || closed_) return;
  if (unsent_.empty()) {
    if (ended_) next_request();
    return;
  }
  writing_ = true;
  sending_.swap(unsent_);
  unsent_.clear();
  stream_.expires_after(milliseconds(context_.options.transfer_seconds));
  asio::async_write(stream_, asio::buffer(sending_),
                    [self = shared_from_this()](const Failure& failure, size_t) {
                      self->writing_ = false;
                      failure ? self->close() : self->flush();
                    });
}

void Session::begin_answer() {
  answering_ = true;
  ++context_.num_answering;
}

void Session::answered() {
  if (std::exchange(answering_, false)) --context_.num_answering;
}

void Session::next_request() {
  on_leave_ = nullptr;
  answered();
  parser_.reset();
  if (!keep_alive_ && unread_) {
    // Lingering close: closing now would reset the connection while the client still sends, and
    // lose the reply. Time bounds it, not bytes: a body may be much longer than `max_body`.
    Failure ignored;
    if (!stream_.is_tls()) stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    stream_.expires_after(milliseconds(context_.options.transfer_seconds));
    buffer_.clear();
    return discard();
  }
  if (!keep_alive_) return close_cleanly();
  // Free buffers, so that an idle connection uses little memory.
  unsent_ = std::string();
  sending_ = std::string();
  if (buffer_.size() == 0) buffer_.shrink_to_fit();
  if (stream_.is_tls()) {
    if (watching_) watching_->cancel();
  } else {
    Failure ignored;
    stream_.socket().cancel(ignored);  // cancels watch()
  }
  read_header();
}

// Reads and drops bytes until the client closes or the time is over.
void Session::discard() {
  stream_.async_read_some(buffer_.prepare(context_.options.max_header),
                          [self = shared_from_this()](const Failure& failure, size_t) {
                            failure ? self->close() : self->discard();
                          });
}

void Session::close_cleanly() {
  if (!stream_.is_tls()) return close();
  stream_.expires_after(milliseconds(context_.options.transfer_seconds));
  stream_.async_shutdown([self = shared_from_this()](const Failure&) { self->close(); });
}

void Session::close() {
  if (closed_.exchange(true)) return;
  answered();
  Failure ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  stream_.close();
  if (auto left = std::exchange(on_leave_, nullptr)) left();
}

}  // namespace moracle::serve
#endif
