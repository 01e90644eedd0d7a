// Sockets as the tcp transport uses them: nonblocking, with a deadline for every wait.
#pragma once

#include <span>
#include <string>

#include "parallel/connect.h"

namespace moracle::tcp {

/// An open socket; move-only.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Address {
  uint32_t ip = 0;    ///< IPv4, network order
  uint16_t port = 0;  ///< host order
};

/// "10.0.0.5:29500"
std::string to_string(const Address& address);

/// Listens at this address only. Port 0: any free one. Errors: the port is taken; the address is
/// not one of this host.
Result<Socket> listen_at(const Address& address);
Result<Address> address_of(const Socket& socket);
Result<Address> peer_of(const Socket& socket);
/// True if the system gave a connecting socket the very port that it connects to. That can happen
/// on one host while no rank listens there; the socket then reads what it sends.
bool is_its_own_peer(const Socket& socket);
/// Errors: a name without an IPv4 address.
Result<Address> resolve(const std::string& host, int port);
/// Tries until the other side listens. Errors: it does not before the deadline.
Result<Socket> connect_to(const Address& to, const Deadline& deadline);
/// A connection that waits; not open if none does. Errors: of the system.
Result<Socket> accept_waiting(const Socket& listener);
/// All bytes, or an error: the deadline, the end of the connection.
Status send_all(const Socket& socket, std::span<const std::byte> bytes, const Deadline& deadline);
Status receive_all(const Socket& socket, std::span<std::byte> bytes, const Deadline& deadline);
/// Those of the bytes that are there, without waiting. Errors: the end of the connection.
Result<size_t> receive_some(const Socket& socket, std::span<std::byte> bytes);

}  // namespace moracle::tcp
