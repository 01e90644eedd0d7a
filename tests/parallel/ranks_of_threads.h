// Ranks as threads of one process, connected by sockets of this host.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "moracle/parallel.h"
#include "parallel/tcp/tcp_sockets.h"

namespace moracle::testing {

/// A port that no process listens at now.
inline int free_port() {
  const auto socket = tcp::listen_at(*tcp::resolve("127.0.0.1", 0));
  return tcp::address_of(*socket)->port;
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
