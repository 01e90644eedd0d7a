// Boost.Beast beside cpp-httplib: streams of server-sent events to many clients, as in a step of
// the server: one thread gives every stream an event at each tick.
//   g++ -O2 -std=c++20 bench/lab/http_streams.cc -o http_streams -lcpp-httplib -lpthread
//   (libboost-dev, libcpp-httplib-dev)
//   ./http_streams beast|httplib STREAMS TICKS TICK_US
#include <httplib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <utility>

#include <boost/asio.hpp>
#include <boost/beast.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

const std::string kEvent = "data: " + std::string(220, 'x') + "\n\n";  // as long as one of a chat

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}
long status_of(const char* name) {  // of /proc/self/status
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name, 0) == 0) return std::atol(line.c_str() + std::strlen(name) + 1);
  }
  return 0;
}

// Streams: tick() gives each an event, end() ends all.
struct Streams {
  virtual ~Streams() = default;
  virtual size_t open() = 0;
  virtual void tick() = 0;
  virtual void end() = 0;
};

class Beast : public Streams {
 public:
  explicit Beast(uint16_t port)
      : acceptor_(io_, tcp::endpoint(asio::ip::address_v4::loopback(), port)) {
    accept();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Beast() override {
    io_.stop();
    thread_.join();
  }
  size_t open() override { return open_; }
  void tick() override {
    asio::post(io_, [this] {
      for (auto& session : sessions_) session->write("e4\r\n" + kEvent + "\r\n");
    });
  }
  void end() override {
    asio::post(io_, [this] {
      for (auto& session : sessions_) session->write("0\r\n\r\n");
    });
  }

 private:
  struct Session : std::enable_shared_from_this<Session> {
    explicit Session(tcp::socket socket) : stream(std::move(socket)) {}
    void write(const std::string& text) {
      unsent += text;
      flush();
    }
    void flush() {
      if (writing || unsent.empty()) return;
      writing = true;
      sending.swap(unsent);
      unsent.clear();
      asio::async_write(stream, asio::buffer(sending),
                        [self = shared_from_this()](boost::system::error_code error, size_t) {
                          self->writing = false;
                          if (!error) self->flush();
                        });
    }
    boost::beast::tcp_stream stream;
    boost::beast::flat_buffer buffer;
    http::request<http::string_body> request;
    std::string unsent, sending;
    bool writing = false;
  };
  void accept() {
    acceptor_.async_accept([this](boost::system::error_code error, tcp::socket socket) {
      if (error) return;
      socket.set_option(tcp::no_delay(true));
      auto session = std::make_shared<Session>(std::move(socket));
      http::async_read(session->stream, session->buffer, session->request,
                       [this, session](boost::system::error_code failed, size_t) {
                         if (failed) return;
                         session->write(
                             "HTTP/1.1 200 OK\r\nContent-Type: "
                             "text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
                         sessions_.push_back(session);
                         ++open_;
                       });
      accept();
    });
  }
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  std::vector<std::shared_ptr<Session>> sessions_;
  std::atomic<size_t> open_{0};
  std::thread thread_;
};

class Httplib : public Streams {
 public:
  Httplib(uint16_t port, size_t streams) {
    server_.new_task_queue = [streams] { return new httplib::ThreadPool(streams); };
    server_.set_tcp_nodelay(true);
    server_.Post("/", [this](const httplib::Request&, httplib::Response& reply) {
      auto queue = std::make_shared<Queue>();
      {
        const std::lock_guard lock(mutex_);
        queues_.push_back(queue);
      }
      reply.set_chunked_content_provider(
          "text/event-stream", [queue](size_t, httplib::DataSink& sink) {
            std::unique_lock lock(queue->mutex);
            queue->wake.wait(lock, [&] { return !queue->text.empty() || queue->ended; });
            const std::string text = std::exchange(queue->text, {});
            const bool ended = queue->ended;
            lock.unlock();
            if (!text.empty()) sink.write(text.data(), text.size());
            if (ended) sink.done();
            return true;
          });
    });
    thread_ = std::thread([this, port] { server_.listen("127.0.0.1", port); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~Httplib() override {
    server_.stop();
    thread_.join();
  }
  size_t open() override {
    const std::lock_guard lock(mutex_);
    return queues_.size();
  }
  void tick() override { give(kEvent, false); }
  void end() override { give("", true); }

 private:
  struct Queue {
    std::mutex mutex;
    std::condition_variable wake;
    std::string text;
    bool ended = false;
  };
  void give(const std::string& text, bool ends) {
    for (auto& queue : queues_) {
      const std::lock_guard lock(queue->mutex);
      queue->text += text;
      queue->ended = ends;
      queue->wake.notify_one();
    }
  }
  httplib::Server server_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Queue>> queues_;
  std::thread thread_;
};

// Another process: reads until every stream has ended. Returns the number of bytes.
long read_all(uint16_t port, size_t streams) {
  const int all = epoll_create1(0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
  for (size_t i = 0; i < streams; ++i) {
    const int one = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(one, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return -1;
    if (send(one, request.data(), request.size(), 0) < 0) return -1;
    epoll_event event{EPOLLIN, {.fd = one}};
    epoll_ctl(all, EPOLL_CTL_ADD, one, &event);
  }
  long bytes = 0;
  std::vector<char> buffer(1 << 16);
  for (size_t open = streams; open > 0;) {
    epoll_event events[64];
    const int count = epoll_wait(all, events, 64, 20000);
    if (count <= 0) return -1;
    for (int i = 0; i < count; ++i) {
      const auto got = recv(events[i].data.fd, buffer.data(), buffer.size(), 0);
      bytes += std::max<long>(got, 0);
      const bool ended = got <= 0 || std::string_view(buffer.data(), got).ends_with("0\r\n\r\n");
      if (ended) {
        close(events[i].data.fd);
        --open;
      }
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const size_t streams = std::atol(argv[2]);
  const long ticks = std::atol(argv[3]), tick_us = std::atol(argv[4]);
  const auto port = static_cast<uint16_t>(20000 + getpid() % 20000);
  const pid_t client = fork();
  if (client == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return read_all(port, streams) > 0 ? 0 : 1;
  }
  const long before = status_of("VmRSS:");
  std::unique_ptr<Streams> server;
  if (std::strcmp(argv[1], "beast") == 0)
    server = std::make_unique<Beast>(port);
  else
    server = std::make_unique<Httplib>(port, streams);
  while (server->open() < streams) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const double cpu = cpu_seconds();
  double giving = 0;
  auto next = Clock::now();
  const auto begin = next;
  for (long t = 0; t < ticks; ++t) {
    const auto start = Clock::now();
    server->tick();
    giving += std::chrono::duration<double>(Clock::now() - start).count();
    next += std::chrono::microseconds(tick_us);
    std::this_thread::sleep_until(next);
  }
  const long rss = status_of("VmRSS:") - before, threads = status_of("Threads:");
  server->end();
  int failed = 0;
  waitpid(client, &failed, 0);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const double events = static_cast<double>(ticks) * static_cast<double>(streams);
  std::printf(
      "%s: %zu streams, %ld ticks in %.2f s, %.0f events/s; CPU %.2f us per event; the giving "
      "thread %.0f us per tick; "
      "%ld threads, %ld KB%s\n",
      argv[1], streams, ticks, seconds, events / seconds, (cpu_seconds() - cpu) / events * 1e6,
      giving / static_cast<double>(ticks) * 1e6, threads, rss, failed ? "; FAILED" : "");
  std::fflush(stdout);
  _exit(failed ? 1 : 0);
}
