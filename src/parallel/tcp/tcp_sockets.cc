#include "parallel/tcp/tcp_sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "base/try.h"

namespace moracle::tcp {
namespace {

constexpr int kMostWaitMs = 100;

Error refused(const std::string& what) {
  return {ErrorKind::kIo, "", "tcp", what, std::strerror(errno)};
}
Error late(const std::string& what, const Deadline& deadline) {
  return {ErrorKind::kIo, "", "tcp", what,
          str("nothing within ", deadline.seconds(), " s (timeout_seconds)")};
}

sockaddr_in to_sockaddr(const Address& address) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = address.ip;
  out.sin_port = htons(address.port);
  return out;
}

// Small messages of a decode step must not wait for more bytes.
Socket prepared(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return Socket(fd);
}

bool wait_for(int fd, short events, const Deadline& deadline) {
  pollfd one{fd, events, 0};
  while (!deadline.passed()) {
    if (::poll(&one, 1, deadline.left_ms(kMostWaitMs)) > 0) return true;
  }
  return false;
}

Result<Address> to_address(const sockaddr_in& from) {
  return Address{from.sin_addr.s_addr, ntohs(from.sin_port)};
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}
Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

std::string to_string(const Address& address) {
  in_addr ip{};
  ip.s_addr = address.ip;
  char text[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &ip, text, sizeof text);
  return str(text, ":", address.port);
}

Result<Socket> listen_at(const Address& address) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0) return refused("a socket");
  Socket socket(fd);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in at = to_sockaddr(address);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      ::listen(fd, SOMAXCONN) != 0) {
    return refused("a free port and an address of this host to listen at " + to_string(address));
  }
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return socket;
}

Result<Address> address_of(const Socket& socket) {
  sockaddr_in own{};
  socklen_t size = sizeof own;
  if (::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&own), &size) != 0)
    return refused("the socket's address");
  return to_address(own);
}

Result<Address> peer_of(const Socket& socket) {
  sockaddr_in peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&peer), &size) != 0)
    return refused("the other side's address");
  return to_address(peer);
}

Result<Address> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); code != 0) {
    return Error{ErrorKind::kIo, "", "tcp", "an IPv4 address of the host '" + host + "'",
                 ::gai_strerror(code)};
  }
  const Address address{reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr.s_addr,
                        static_cast<uint16_t>(port)};
  ::freeaddrinfo(found);
  return address;
}

bool is_its_own_peer(const Socket& socket) {
  const Result<Address> own = address_of(socket), peer = peer_of(socket);
  return own && peer && own->ip == peer->ip && own->port == peer->port;
}

Result<Socket> connect_to(const Address& to, const Deadline& deadline) {
  const sockaddr_in address = to_sockaddr(to);
  while (!deadline.passed()) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return refused("a socket");
    Socket socket = prepared(fd);
    bool done = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    if (!done && errno == EINPROGRESS && wait_for(fd, POLLOUT, deadline)) {
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
      done = error == 0;
    }
    if (done && !is_its_own_peer(socket)) return socket;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // not listening yet
  }
  return late("a rank that listens at " + to_string(to), deadline);
}

Result<Socket> accept_waiting(const Socket& listener) {
  const int fd = ::accept(listener.fd(), nullptr, nullptr);
  if (fd >= 0) return prepared(fd);
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return Socket();
  return refused("a connection of another rank");
}

Status send_all(const Socket& socket, std::span<const std::byte> bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(sent);
    } else if (errno != EAGAIN && errno != EINTR) {
      return refused("a connection that takes bytes");
    } else if (!wait_for(socket.fd(), POLLOUT, deadline)) {
      return late("a connection that takes bytes", deadline);
    }
  }
  return {};
}

Result<size_t> receive_some(const Socket& socket, std::span<std::byte> bytes) {
  const ssize_t got = ::recv(socket.fd(), bytes.data(), bytes.size(), 0);
  if (got > 0) return static_cast<size_t>(got);
  if (got == 0)
    return Error{ErrorKind::kIo, "", "tcp", "bytes of another rank", "it closed the connection"};
  if (errno != EAGAIN && errno != EINTR) return refused("bytes of another rank");
  return size_t{0};
}

Status receive_all(const Socket& socket, std::span<std::byte> bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    MORACLE_TRY(const size_t got, receive_some(socket, bytes));
    bytes = bytes.subspan(got);
    if (got == 0 && !wait_for(socket.fd(), POLLIN, deadline))
      return late("bytes of another rank", deadline);
  }
  return {};
}

}  // namespace moracle::tcp
