// HTTP server on Boost.Beast with one I/O thread. A thread per connection, as in cpp-httplib, needs
// 2,000 threads for 2,000 idle clients.
#ifdef MORACLE_WITH_HTTP
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <new>
#include <thread>

#include "base/text.h"
#include "base/try.h"
#include "serve/http/session.h"

namespace moracle::serve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Failure = boost::beast::error_code;

class BeastServer : public HttpServer {
 public:
  BeastServer(const HttpOptions& options, HttpHandler handler, std::unique_ptr<TlsContext> tls)
      : tls_(std::move(tls)), context_{options, std::move(handler), workers_, tls_.get()} {}

  ~BeastServer() override { BeastServer::stop(); }

  void stop() override {
    context_.stopping = true;
    workers_.join();
    // Flush running replies until this deadline.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (context_.num_answering > 0 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }

  Status listen() {
    const HttpOptions& options = context_.options;
    Failure failure;
    const auto address =
        asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, failure);
    if (failure) {
      return Error{ErrorKind::kInvalidArgument, "", "host", "an IP address or localhost",
                   str("it is ", options.host)};
    }
    const tcp::endpoint endpoint(address, options.port);
    acceptor_.open(endpoint.protocol(), failure);
    if (!failure) acceptor_.set_option(tcp::acceptor::reuse_address(true), failure);
    if (!failure) acceptor_.bind(endpoint, failure);
    if (!failure) acceptor_.listen(asio::socket_base::max_listen_connections, failure);
    if (failure) {
      return Error{ErrorKind::kIo, "", str("port ", options.port, " of ", options.host),
                   "a free port and an address of this machine", failure.message()};
    }
    port_ = acceptor_.local_endpoint().port();
    accept();
    thread_ = std::thread([this] { run(); });
    return {};
  }

  uint16_t port() const override { return port_; }
  int64_t num_connections() const override { return context_.num_connections; }

 private:
  void run() {
    while (!io_.stopped()) {
      try {
        io_.run();
      } catch (const std::bad_alloc&) {  // out of memory: close the connection of this handler
      } catch (const boost::system::system_error&) {  // likewise: OpenSSL could not begin a session
      }
    }
  }

  void accept() {
    acceptor_.async_accept([this](const Failure& failure, tcp::socket socket) {
      if (failure) {
        // Retry after accept errors such as too many open files.
        retry_.expires_after(std::chrono::milliseconds(100));
        retry_.async_wait([this](const Failure& cancelled) {
          if (!cancelled) accept();
        });
        return;
      }
      accept();
      Failure ignored;
      if (context_.num_connections < context_.options.max_connections) {
        socket.set_option(tcp::no_delay(true), ignored);
        std::make_shared<Session>(std::move(socket), context_)->start();
      } else if (tls_) {
        socket.close(ignored);  // a reply needs a handshake
      } else {
        std::string full = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n";
        for (const auto& [name, value] : context_.options.headers)
          full += str(name, ": ", value, "\r\n");
        full += "Content-Length: 0\r\nConnection: close\r\n\r\n";
        socket.non_blocking(true, ignored);
        socket.send(asio::buffer(full), 0, ignored);
      }
    });
  }

  const std::unique_ptr<TlsContext> tls_;
  asio::thread_pool workers_{2};
  SessionContext context_;
  asio::io_context io_{1};
  tcp::acceptor acceptor_{io_};
  asio::steady_timer retry_{io_};
  uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace

Status HttpServer::check_tls(const HttpOptions& options) {
  const auto tls = TlsContext::open(options);
  return tls ? Status() : Status(tls.error());
}

Status HttpServer::available() {
  return {};
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions& options,
                                                      HttpHandler handler) {
  MORACLE_TRY(std::unique_ptr<TlsContext> tls, TlsContext::open(options));
  auto server = std::make_unique<BeastServer>(options, std::move(handler), std::move(tls));
  MORACLE_CHECK(server->listen());
  return Result<std::unique_ptr<HttpServer>>(std::move(server));
}

}  // namespace moracle::serve
#endif
