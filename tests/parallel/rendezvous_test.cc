// Ranks that meet over sockets while other processes connect, send bytes or change them.
#include <arpa/inet.h>
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <set>
#include <sstream>

#include "parallel/tcp/tcp_hello.h"
#include "ranks_of_threads.h"

namespace moracle::rendezvous_test {
namespace {

using testing::free_port;
using ::testing::HasSubstr;
using testing::rank_of_threads;

constexpr const char* kSecret = "a secret of this job";

RankOptions with_secret(RankOptions options, std::string secret) {
  options.secret = std::move(secret);
  return options;
}

tcp::Socket connected(int port) {
  auto socket = tcp::connect_to(*tcp::resolve("127.0.0.1", port), Deadline(10));
  EXPECT_TRUE(socket);
  return socket ? *std::move(socket) : tcp::Socket();
}

Status say(const tcp::Socket& socket, std::span<const std::byte> bytes) {
  return tcp::send_all(socket, bytes, Deadline(5));
}

template <class T>
std::span<std::byte> bytes(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

tcp::Hello hello_of(int64_t size, int64_t from, int64_t to = 0) {
  tcp::Hello hello;
  hello.magic = tcp::kMagic;
  hello.size = size, hello.from = from, hello.to = to;
  return hello;
}

// Rank 0 meets rank 1 while the sockets of `strangers` stay open.
void expect_meeting(const std::function<void(int port, std::vector<tcp::Socket>&)>& strangers,
                    const std::string& secret = "") {
  const int port = free_port();
  std::string error;
  std::thread first([&] {
    const auto group = open_group(with_secret(rank_of_threads(0, 2, port), secret));
    error = !group ? group.error().to_string() : (*group)->barrier() ? "" : "no barrier";
  });
  std::vector<tcp::Socket> open;
  strangers(port, open);
  const auto group = open_group(with_secret(rank_of_threads(1, 2, port), secret));
  EXPECT_TRUE(group) << group.error().to_string();
  EXPECT_TRUE(group && (*group)->barrier());
  first.join();
  EXPECT_EQ(error, "");
}

TEST(Rendezvous, ClosedConnectionIsDropped) {
  expect_meeting([](int port, std::vector<tcp::Socket>&) { connected(port); });
}

TEST(Rendezvous, ManySilentConnectionsDelayNoRank) {
  expect_meeting([](int port, std::vector<tcp::Socket>& open) {
    for (int i = 0; i < 100; ++i) open.push_back(connected(port));
  });
}

TEST(Rendezvous, OtherProtocolsAreDropped) {
  for (const std::string_view text :
       {std::string_view("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), std::string_view("\x16\x03\x01", 3),
        std::string_view("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16)}) {
    expect_meeting([&](int port, std::vector<tcp::Socket>& open) {
      open.push_back(connected(port));
      ASSERT_TRUE(say(open.back(), std::as_bytes(std::span(text))));
    });
  }
}

TEST(Rendezvous, HelloThatStopsEarlyIsDropped) {
  for (const size_t length : {size_t{1}, size_t{8}, sizeof(tcp::Hello) - 1, sizeof(tcp::Hello)}) {
    expect_meeting([&](int port, std::vector<tcp::Socket>& open) {
      tcp::Hello hello = hello_of(2, 1);
      open.push_back(connected(port));
      ASSERT_TRUE(say(open.back(), bytes(hello).first(length)));
    });
  }
}

TEST(Rendezvous, WrongHelloIsRefusedWithTheReasonAndEndsNothing) {
  const std::pair<tcp::Hello, tcp::Refusal> wrong[] = {
      {hello_of(3, 1), tcp::Refusal::kSize},
      {hello_of(2, 0), tcp::Refusal::kRank},
      {hello_of(2, 2), tcp::Refusal::kRank},
      {hello_of(2, -1), tcp::Refusal::kRank},
      {hello_of(2, 1, 1), tcp::Refusal::kRank},
      {hello_of(2, int64_t{1} << 40), tcp::Refusal::kRank}};
  for (auto [given, refusal] : wrong) {
    expect_meeting(
        [hello = given, reason = refusal](int port, std::vector<tcp::Socket>& open) mutable {
          tcp::Challenge challenge;
          open.push_back(connected(port));
          ASSERT_TRUE(say(open.back(), bytes(hello)));
          ASSERT_TRUE(tcp::receive_all(open.back(), bytes(challenge), Deadline(10)));
          EXPECT_EQ(challenge.refusal, reason);
        });
  }
}

// The proof of rank 0, sent back as one's own, and random bytes.
TEST(Rendezvous, ConnectionWithoutTheSecretIsRefused) {
  for (const bool reflects : {true, false}) {
    expect_meeting(
        [&](int port, std::vector<tcp::Socket>& open) {
          tcp::Hello hello = hello_of(2, 1);
          hello.has_secret = 1;
          tcp::Challenge challenge;
          tcp::Refusal verdict = tcp::Refusal::kNone;
          open.push_back(connected(port));
          ASSERT_TRUE(say(open.back(), bytes(hello)));
          ASSERT_TRUE(tcp::receive_all(open.back(), bytes(challenge), Deadline(10)));
          tcp::Proof proof = reflects ? challenge.proof : tcp::fresh_nonce();
          ASSERT_TRUE(say(open.back(), bytes(proof)));
          ASSERT_TRUE(tcp::receive_all(open.back(), bytes(verdict), Deadline(10)));
          EXPECT_EQ(verdict, tcp::Refusal::kProof);
        },
        kSecret);
  }
}

TEST(Rendezvous, RankWithAnotherSecretIsRefusedAndTheRightOneJoins) {
  const std::pair<const char*, const char*> other[] = {
      {"another secret 0123456789", "their secrets differ"},
      {"", "the connecting rank has no secret, the other has one"}};
  for (const auto& [given, refusal] : other) {
    expect_meeting(
        [secret = given, reason = refusal](int port, std::vector<tcp::Socket>&) {
          const auto group = open_group(with_secret(rank_of_threads(1, 2, port), secret));
          ASSERT_FALSE(group);
          EXPECT_THAT(group.error().to_string(),
                      HasSubstr(std::string("rank 0: needs ranks of one job, each once, with the "
                                            "same secret; ") +
                                reason));
        },
        kSecret);
  }
  expect_meeting([&](int port, std::vector<tcp::Socket>&) {
    const auto group = open_group(with_secret(rank_of_threads(1, 2, port), kSecret));
    ASSERT_FALSE(group);
    EXPECT_THAT(group.error().to_string(),
                HasSubstr("the connecting rank has a secret, the other has none"));
  });
}

// It accepts everybody, and cannot prove that it knows the secret.
TEST(Rendezvous, FalseRankZeroIsRefused) {
  const auto listener = tcp::listen_at(*tcp::resolve("127.0.0.1", 0));
  ASSERT_TRUE(listener);
  std::thread false_rank([&] {
    pollfd one{listener->fd(), POLLIN, 0};
    ::poll(&one, 1, 10'000);
    const auto socket = tcp::accept_waiting(*listener);
    if (!socket || !socket->open()) return;
    tcp::Hello hello;
    if (!tcp::receive_all(*socket, bytes(hello), Deadline(10))) return;
    tcp::Challenge challenge;
    challenge.magic = tcp::kMagic;
    challenge.size = 2;
    challenge.proof = tcp::proof_of_accepting("a guess of the secret", hello, challenge.nonce);
    (void)say(*socket, bytes(challenge)).ok();
    std::byte next;
    EXPECT_FALSE(tcp::receive_all(*socket, {&next, 1}, Deadline(10))) << "it gets a proof";
  });
  const int port = tcp::address_of(*listener)->port;
  {
    const auto group = open_group(with_secret(rank_of_threads(1, 2, port), kSecret));
    ASSERT_FALSE(group);
    EXPECT_THAT(group.error().to_string(), HasSubstr("their secrets differ"));
  }
  false_rank.join();
}

TEST(Rendezvous, MissingRankIsNamedWithTheLastRefusal) {
  const int port = free_port();
  std::string error;
  std::thread first([&] {
    const auto group = open_group(rank_of_threads(0, 2, port, 2));
    if (!group) error = group.error().to_string();
  });
  const auto other = open_group(rank_of_threads(1, 3, port, 5));
  first.join();
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().to_string(), HasSubstr("one is of a job of 3 ranks, the other of 2"));
  EXPECT_THAT(error, HasSubstr("rank 1: needs an answer within 2 s"));
  EXPECT_THAT(error, HasSubstr("refused connections: 1, the last from 127.0.0.1:"));
}

TEST(Rendezvous, SecretIsRefusedWhereItIsTooShortOrTheTransportIgnoresIt) {
  RankOptions options = with_secret(rank_of_threads(0, 2, free_port()), "15 bytes or so.");
  EXPECT_THAT(open_group(options).error().to_string(),
              HasSubstr("secret: needs at least 16 bytes, or none; it has 15"));
  options = with_secret(options, kSecret);
  options.transport = "mpi";
  EXPECT_THAT(open_group(options).error().to_string(), HasSubstr("the transport is mpi"));
}

TEST(Rendezvous, AddressOfAnotherHostIsRefused) {
  RankOptions options = rank_of_threads(0, 2, free_port());
  options.address = "192.0.2.1";  // reserved for documentation (RFC 5737)
  EXPECT_THAT(open_group(options).error().to_string(),
              HasSubstr("needs a free port and an address of this host to listen at 192.0.2.1:"));
}

std::set<std::string> open_files() {
  std::set<std::string> own;
  DIR* const folder = ::opendir("/proc/self/fd");
  for (const dirent* entry = folder ? ::readdir(folder) : nullptr; entry;
       entry = ::readdir(folder)) {
    char target[64] = {};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (::readlink(path.c_str(), target, sizeof target - 1) > 0) own.insert(target);
  }
  if (folder) ::closedir(folder);
  return own;
}

// The IPv4 addresses at which this process listens, as /proc/net/tcp shows them, without the
// sockets of `before`: NCCL, which earlier tests may have used, keeps one open.
std::multiset<std::string> listening_at(const std::set<std::string>& before) {
  const std::set<std::string> own = open_files();
  std::multiset<std::string> addresses;
  std::ifstream table("/proc/self/net/tcp");
  std::string line, slot, local, remote, state, skipped, inode;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    fields >> slot >> local >> remote >> state;
    for (int i = 0; i < 5; ++i) fields >> skipped;
    fields >> inode;
    const std::string file = "socket:[" + inode + "]";
    if (state == "0A" && own.contains(file) && !before.contains(file))
      addresses.insert(local.substr(0, local.find(':')));
  }
  return addresses;
}

TEST(Rendezvous, RanksListenOnlyAtTheAddressOfTheJob) {
  const std::set<std::string> before = open_files();
  const int port = free_port();
  std::vector<std::thread> ranks;
  std::atomic<bool> good{true};
  const auto start = [&](int64_t rank) {
    ranks.emplace_back([&, rank] {
      const auto group = open_group(rank_of_threads(rank, 3, port));
      if (!group || !(*group)->barrier()) good = false;
    });
  };
  start(0), start(1);
  // Both wait for rank 2.
  std::multiset<std::string> addresses;
  for (const Deadline soon(10); addresses.size() < 2 && !soon.passed();)
    addresses = listening_at(before);
  start(2);
  for (std::thread& rank : ranks) rank.join();
  EXPECT_TRUE(good);
  EXPECT_EQ(addresses, (std::multiset<std::string>{"0100007F", "0100007F"}));
  EXPECT_TRUE(listening_at(before).empty()) << "a port is open after the ranks have met";
}

// Forwards one connection to `to`, and flips a bit of byte `at` on the way to the connecting side.
class Proxy {
 public:
  Proxy(int to, size_t at) : listener_(*tcp::listen_at(*tcp::resolve("127.0.0.1", 0))) {
    port_ = tcp::address_of(listener_)->port;
    thread_ = std::thread([this, to, at] { run(to, at); });
  }
  ~Proxy() { thread_.join(); }
  int port() const { return port_; }

 private:
  void run(int to, size_t at) {
    pollfd one{listener_.fd(), POLLIN, 0};
    ::poll(&one, 1, 10'000);
    const auto left = tcp::accept_waiting(listener_);
    if (!left || !left->open()) return;
    const tcp::Socket right = connected(to);
    size_t passed = 0;
    for (;;) {
      pollfd both[] = {{left->fd(), POLLIN, 0}, {right.fd(), POLLIN, 0}};
      if (::poll(both, 2, 10'000) <= 0) return;
      for (const auto& [from, into, back] :
           {std::tuple(&*left, &right, false), std::tuple(&right, &*left, true)}) {
        std::byte buffer[4096];
        const auto got = tcp::receive_some(*from, buffer);
        if (!got) return;
        if (back && at >= passed && at < passed + *got) buffer[at - passed] ^= std::byte{1};
        if (back) passed += *got;
        if (!tcp::send_all(*into, std::span(buffer).first(*got), Deadline(5))) return;
      }
    }
  }

  tcp::Socket listener_;
  int port_ = 0;
  std::thread thread_;
};

class ChangedByte : public ::testing::TestWithParam<const char*> {};

// What rank 0 sends before the message: challenge, verdict, the table of addresses.
constexpr size_t kMet = sizeof(tcp::Challenge) + sizeof(tcp::Refusal) + sizeof(tcp::Header) +
                        sizeof(tcp::Tag) + 2 * sizeof(tcp::Address);

TEST_P(ChangedByte, IsDetectedAnywhereInAMessage) {
  constexpr size_t kSize = 24;
  const size_t end = kMet + sizeof(tcp::Header) + kSize + sizeof(tcp::Tag);
  for (size_t at = kMet; at <= end; ++at) {
    const int port = free_port();
    const auto exchange = [&](int64_t rank, int to) -> std::string {
      const auto group = open_group(with_secret(rank_of_threads(rank, 2, to), GetParam()));
      if (!group) return group.error().to_string();
      std::array<unsigned char, kSize> told = {};
      if (rank == 0) told.fill(7);
      const Status done = (*group)->broadcast(bytes(told), 0);
      if (!done) return done.error().to_string();
      return std::count(told.begin(), told.end(), 7) == kSize ? "" : "other bytes";
    };
    std::thread first([&] { exchange(0, port); });
    std::string outcome;
    {
      const Proxy proxy(port, at);
      outcome = exchange(1, proxy.port());
    }
    first.join();
    if (at == end)
      EXPECT_EQ(outcome, "") << "no byte of the message is changed";
    else
      EXPECT_EQ(outcome,
                "rank 0: needs messages that arrive unchanged; the checksum of one is wrong")
          << "byte " << at - kMet;
  }
}

TEST_P(ChangedByte, IsDetectedDuringTheHandshake) {
  // In the proof of rank 0; in its verdict; in header, bytes and tag of the table.
  for (const size_t at :
       {sizeof(tcp::Challenge) - 1, sizeof(tcp::Challenge), kMet - 40, kMet - 24, kMet - 8}) {
    const int port = free_port();
    bool met = true;
    std::thread first(
        [&] { (void)open_group(with_secret(rank_of_threads(0, 2, port, 1), GetParam())).ok(); });
    {
      const Proxy proxy(port, at);
      met = open_group(with_secret(rank_of_threads(1, 2, proxy.port(), 1), GetParam())).ok();
    }
    first.join();
    EXPECT_FALSE(met) << "byte " << at;
  }
}

INSTANTIATE_TEST_SUITE_P(Meeting, ChangedByte, ::testing::Values("", kSecret),
                         [](const auto& secret) {
                           return secret.param[0] == '\0' ? "WithoutSecret" : "WithSecret";
                         });

TEST(Seal, TagsDependOnKeyNumberAndBytes) {
  for (const bool authenticates : {false, true}) {
    tcp::Seal::Key key = {1}, other_key = {2};
    tcp::Seal seal(key, authenticates), other(other_key, authenticates);
    const tcp::Header header{tcp::Kind::kData, 5, {}};
    const tcp::Tag first = seal.of_header(header);
    EXPECT_EQ(first, tcp::Seal(key, authenticates).of_header(header));
    seal.next();
    EXPECT_NE(first, seal.of_header(header)) << "a repeated message has the same tag";
    if (!authenticates) continue;
    EXPECT_NE(first, other.of_header(header)) << "a stranger can compute the tag";
    EXPECT_NE(seal.of_payload().finish(), other.of_payload().finish());
  }
}

}  // namespace
}  // namespace moracle::rendezvous_test
