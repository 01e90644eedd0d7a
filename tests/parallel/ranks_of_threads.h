// Ranks as threads of one process, connected by sockets of this host.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "moracle/parallel.h"

namespace moracle::testing {

/// A port for rank 0. It stays bound until the program ends, so the system gives it to no other
/// socket; SO_REUSEADDR lets rank 0 listen at it nevertheless.
inline int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(fd, any, size) != 0 || ::getsockname(fd, any, &size) != 0)
    throw std::runtime_error("no port is free");
  return ntohs(address.sin_port);
}

inline RankOptions rank_of_threads(int64_t rank, int64_t size, int port, double timeout = 20) {
  RankOptions options;
  options.rank = options.local_rank = rank;
  options.size = options.local_size = size;
  options.transport = "tcp";
  options.address = "127.0.0.1";
  options.port = port;
  options.timeout_seconds = timeout;
  return options;
}

/// Calls work(group) on each rank, with a connected group.
inline void on_ranks(int64_t size, const std::function<void(std::shared_ptr<Group>)>& work,
                     double timeout = 20) {
  const int port = free_port();
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto group = open_group(rank_of_threads(rank, size, port, timeout));
      if (!group) throw std::runtime_error(group.error().to_string());
      work(*group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace moracle::testing
