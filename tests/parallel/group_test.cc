// Collective operations and faults over sockets, with ranks that are threads.
#include "moracle/parallel.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>

#include "parallel/tcp/tcp_sockets.h"
#include "ranks_of_threads.h"

namespace moracle::group_test {
namespace {

using testing::free_port;
using ::testing::HasSubstr;
using testing::on_ranks;
using testing::rank_of_threads;

template <class T>
std::span<std::byte> bytes(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

TEST(Group, OneProcessNeedsNoTransport) {
  const auto group = open_group({});
  ASSERT_TRUE(group);
  EXPECT_EQ((*group)->name(), "one");
  EXPECT_TRUE((*group)->barrier());
  int value = 7, all = 0;
  EXPECT_TRUE((*group)->all_gather(bytes(value), bytes(all)));
  EXPECT_EQ(all, 7);
}

TEST(Group, RefusesRankOutsideTheJob) {
  RankOptions options;
  options.rank = 2, options.size = 2;
  EXPECT_THAT(open_group(options).error().to_string(), HasSubstr("rank 2 of 2"));
}

TEST(Group, UnknownTransportIsRefusedWithTheKnownOnes) {
  RankOptions options;
  options.size = 2, options.transport = "pigeons";
  EXPECT_THAT(open_group(options).error().to_string(), HasSubstr("auto, mpi, tcp"));
}

TEST(Group, BroadcastAndGatherReachEveryRank) {
  for (const int64_t size : {2, 3, 5}) {
    std::atomic<int> good{0};
    on_ranks(size, [&](const std::shared_ptr<Group>& group) {
      int64_t told = group->rank() == 1 ? 42 : 0;
      ASSERT_TRUE(group->broadcast(bytes(told), 1));
      const int64_t own = 10 + group->rank();
      std::vector<int64_t> all(size);
      ASSERT_TRUE(group->all_gather(std::as_bytes(std::span(&own, 1)),
                                    std::as_writable_bytes(std::span(all))));
      bool same = told == 42;
      for (int64_t r = 0; r < size; ++r) same = same && all[r] == 10 + r;
      ASSERT_TRUE(group->barrier());
      good += same;
    });
    EXPECT_EQ(good, size);
  }
}

// Parts of many sizes, empty ones too, larger than a socket's buffer.
TEST(Group, ExchangesUnevenBlocks) {
  constexpr int64_t kSize = 3;
  std::atomic<int> good{0};
  on_ranks(kSize, [&](const std::shared_ptr<Group>& group) {
    const auto count = [](int64_t from, int64_t to) -> size_t {
      return from == to + 1 ? 0 : static_cast<size_t>(1 + 700'000 * from + 13 * to);
    };
    std::vector<std::vector<uint32_t>> out(kSize), in(kSize);
    std::vector<Group::Block> send, receive;
    for (int64_t r = 0; r < kSize; ++r) {
      out[r].assign(count(group->rank(), r), static_cast<uint32_t>(100 * group->rank() + r));
      in[r].resize(count(r, group->rank()));
      send.push_back({reinterpret_cast<std::byte*>(out[r].data()), out[r].size() * 4});
      receive.push_back({reinterpret_cast<std::byte*>(in[r].data()), in[r].size() * 4});
    }
    ASSERT_TRUE(group->exchange(send, receive));
    bool same = true;
    for (int64_t r = 0; r < kSize; ++r)
      same = same && in[r] == std::vector<uint32_t>(count(r, group->rank()),
                                                    static_cast<uint32_t>(100 * r + group->rank()));
    good += same;
  });
  EXPECT_EQ(good, kSize);
}

// Only the sender knows the size: none, a few bytes, more than a socket's buffer; the memory of
// an earlier message is used again.
TEST(Group, ExchangesMessagesOfUnknownSize) {
  constexpr int64_t kSize = 3;
  std::atomic<int> good{0};
  on_ranks(kSize, [&](const std::shared_ptr<Group>& group) {
    bool same = true;
    std::vector<Group::Message> in(kSize);
    for (const size_t unit : {700'000, 3, 0, 5}) {
      const auto count = [&](int64_t from, int64_t to) -> size_t {
        return from == to + 1 ? 0 : unit * static_cast<size_t>(1 + from) + 13 * to;
      };
      std::vector<std::vector<std::byte>> out;
      std::vector<Group::Block> send;
      for (int64_t r = 0; r < kSize; ++r) {
        out.emplace_back(count(group->rank(), r), std::byte(10 * group->rank() + r));
        send.push_back({out[r].data(), out[r].size()});
      }
      ASSERT_TRUE(group->exchange_messages(send, in));
      for (int64_t r = 0; r < kSize; ++r) {
        const std::vector<std::byte> want(count(r, group->rank()),
                                          std::byte(10 * r + group->rank()));
        same = same && in[r].bytes == want.size() && in[r].memory.size() >= want.size() &&
               std::equal(want.begin(), want.end(), in[r].memory.begin());
      }
    }
    good += same;
  });
  EXPECT_EQ(good, kSize);
}

TEST(Group, RankThatIsSilentOrEndsIsNamedWhileMessagesAreAwaited) {
  std::string silent, ended;
  std::atomic<bool> waits{true};
  on_ranks(
      2,
      [&](std::shared_ptr<Group> group) {
        if (group->rank() == 1) {
          while (waits) std::this_thread::yield();
          return;
        }
        std::vector<Group::Message> in(2);
        const std::vector<Group::Block> nothing(2);
        const Status done = group->exchange_messages(nothing, in);
        silent = done ? "" : done.error().to_string();
        waits = false;
      },
      0.3);
  EXPECT_THAT(silent, HasSubstr("rank 1: needs an answer within 0.3 s (timeout_seconds)"));
  on_ranks(2, [&](std::shared_ptr<Group> group) {
    if (group->rank() == 1) return;
    std::vector<Group::Message> in(2);
    const Status done = group->exchange_messages(std::vector<Group::Block>(2), in);
    ended = done ? "" : done.error().to_string();
  });
  EXPECT_THAT(ended, HasSubstr("rank 1: needs to take part until the end; it has ended"));
}

TEST(Group, RankThatEndsIsNamed) {
  std::string errors[3];
  on_ranks(3, [&](std::shared_ptr<Group> group) {
    if (group->rank() == 1) return;
    errors[group->rank()] = group->barrier() ? "" : "no barrier";
    const Status again = group->barrier();
    if (!again) errors[group->rank()] = again.error().to_string();
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1: needs to take part until the end; it has ended"));
}

TEST(Group, RankThatDoesNotAnswerIsNamedWithinTheTimeout) {
  std::string errors[3];
  std::atomic<int> waiting{2};
  on_ranks(
      3,
      [&](const std::shared_ptr<Group>& group) {
        if (group->rank() == 2) {
          while (waiting > 0) std::this_thread::yield();
          return;
        }
        const Status done = group->barrier();
        errors[group->rank()] = done ? "" : done.error().to_string();
        --waiting;
        while (waiting > 0) std::this_thread::yield();
      },
      0.3);
  for (const int r : {0, 1})
    EXPECT_THAT(errors[r], HasSubstr("rank 2: needs an answer within 0.3 s (timeout_seconds)"));
}

TEST(Group, AbortReasonReachesOtherRanks) {
  std::string error;
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    if (group->rank() == 1) {
      group->abort({ErrorKind::kIo, "model.safetensors", "byte 5", "to be readable", "it is not"});
      return;
    }
    const Status done = group->barrier();
    error = done ? "" : done.error().to_string();
  });
  EXPECT_THAT(error, HasSubstr("rank 1: needs to take part until the end; it stopped: "
                               "model.safetensors: byte 5: needs to be readable; it is not"));
}

TEST(Group, AbortReasonReachesARankThatOnlySends) {
  std::string error;
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    if (group->rank() == 1) {
      group->abort({ErrorKind::kIo, "", "the model", "to be readable", "it is not"});
      return;
    }
    // The first bytes to a closed socket are taken.
    for (int tries = 0; tries < 2000 && error.empty(); ++tries) {
      int64_t data = 1;
      if (const Status done = group->broadcast(bytes(data), 0); !done)
        error = done.error().to_string();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  EXPECT_THAT(error, HasSubstr("rank 1: needs to take part until the end; it stopped: the model"));
}

// The watchdog of a GPU calls look() while it waits.
TEST(Group, LookFindsARankThatEndedWithoutWaiting) {
  std::string before = "no look", after;
  on_ranks(2, [&](std::shared_ptr<Group> group) {
    if (group->rank() == 1) {
      if (!group->barrier()) return;
      int64_t data = 1;  // waits in the socket, and is no reason
      (void)group->broadcast(bytes(data), 1).ok();
      (void)group->barrier().ok();
      return;
    }
    if (!group->barrier()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const Status fine = group->look();
    before = fine ? "" : fine.error().to_string();
    int64_t data = 0;
    if (!group->broadcast(bytes(data), 1) || data != 1 || !group->barrier()) return;
    for (Status look; after.empty(); look = group->look())
      if (!look) after = look.error().to_string();
  });
  EXPECT_EQ(before, "");
  EXPECT_THAT(after, HasSubstr("rank 1: needs to take part until the end; it has ended"));
}

TEST(Group, LookFindsTheReasonOfARankThatStops) {
  std::string error;
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    if (group->rank() == 1) {
      group->abort({ErrorKind::kIo, "", "the model", "to be readable", "it is not"});
      return;
    }
    for (Status look; error.empty(); look = group->look())
      if (!look) error = look.error().to_string();
  });
  EXPECT_THAT(error, HasSubstr("rank 1: needs to take part until the end; it stopped: the model"));
}

TEST(Group, MissingRanksAreNamed) {
  const auto group = open_group(rank_of_threads(0, 3, free_port(), 0.2));
  ASSERT_FALSE(group);
  EXPECT_THAT(group.error().to_string(), HasSubstr("ranks 1, 2: needs an answer within 0.2 s"));
}

TEST(Group, SocketThatConnectsToItselfIsNotAnotherRank) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const to = reinterpret_cast<sockaddr*>(&address);
  const tcp::Socket alone(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(alone.fd(), to, size), 0);
  ASSERT_EQ(::getsockname(alone.fd(), to, &size), 0);
  ASSERT_EQ(::connect(alone.fd(), to, size), 0) << "the system connects it to itself";
  EXPECT_TRUE(tcp::is_its_own_peer(alone));

  const Result<tcp::Socket> listener = tcp::listen_at(*tcp::resolve("127.0.0.1", 0));
  ASSERT_TRUE(listener);
  const Result<tcp::Socket> other =
      tcp::connect_to(*tcp::resolve("127.0.0.1", tcp::address_of(*listener)->port), Deadline(5));
  ASSERT_TRUE(other);
  EXPECT_FALSE(tcp::is_its_own_peer(*other));
}

}  // namespace
}  // namespace moracle::group_test
