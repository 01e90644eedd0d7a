// Ranks connected by one socket for each pair. A message is a header and its bytes. The end of a
// process closes its sockets, so that the others know at once which rank is gone.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "base/try.h"
#include "parallel/tcp/tcp_connect.h"

namespace moracle {
namespace {

enum class Kind : uint64_t { kData = 1, kAbort = 2 };
struct Header {
  Kind kind = Kind::kData;
  uint64_t bytes = 0;
};
constexpr uint64_t kLongestReason = 4096;

// One message of one transfer, in one direction.
struct Flow {
  int64_t rank = 0;
  bool sends = false;
  Group::Part part;
  Header header;
  size_t done = 0;                    // of header and part together
  Group::Message* message = nullptr;  // takes a part whose size the header tells
  bool finished() const { return done == sizeof header + part.bytes; }
  // The next bytes: of the header, then of the part.
  std::span<std::byte> rest() {
    if (done < sizeof header) return std::as_writable_bytes(std::span(&header, 1)).subspan(done);
    return {part.data + (done - sizeof header), sizeof header + part.bytes - done};
  }
};

class TcpGroup final : public Group {
 public:
  TcpGroup(const RankOptions& options, std::vector<tcp::Socket> sockets)
      : Group(options), sockets_(std::move(sockets)) {}
  std::string_view name() const override { return "tcp"; }

  Status look() override;
  void abort(const Error& reason) override {
    std::string text = reason.to_string().substr(0, kLongestReason);
    const Header header{Kind::kAbort, text.size()};
    const Deadline soon(0.2);
    for (int64_t r = 0; r < size(); ++r) {
      if (!sockets_[r].open() || r == torn_) continue;
      // A rank that takes nothing does not hear it. The closed socket tells it later.
      if (tcp::send_all(sockets_[r], std::as_bytes(std::span(&header, 1)), soon))
        (void)tcp::send_all(sockets_[r], std::as_bytes(std::span(text)), soon).ok();
    }
  }

 private:
  Status transfer(std::span<const Part> send, std::span<const Part> receive,
                  double seconds) override;
  Status transfer_messages(std::span<const Part> send, std::span<Message> received,
                           double seconds) override;
  Status finish(std::vector<Flow>& flows, double seconds);
  Status step(Flow& flow);
  Status take_header(Flow& flow);
  Status look_at(int64_t rank);
  Error reason_of(int64_t rank, const Header& header);
  // The reason that the rank of a failed flow sent before it ended, or else the failure.
  Error reason_before(std::vector<Flow>& flows, const Flow& failed, const Error& failure);
  Error lost(int64_t rank, const std::string& how);

  std::vector<tcp::Socket> sockets_;
  int64_t torn_ = -1;  // this rank's message to it is incomplete: no other can follow
};

Error TcpGroup::reason_of(int64_t rank, const Header& header) {
  std::string text(std::min(header.bytes, kLongestReason), '\0');
  if (!tcp::receive_all(sockets_[rank], std::as_writable_bytes(std::span(text)), Deadline(0.2)))
    text = "its reason did not arrive";
  return aborted_rank(rank, text);
}

Error TcpGroup::lost(int64_t rank, const std::string& how) {
  torn_ = rank;
  return ended_rank(rank, how);
}

// Between messages of that rank.
Status TcpGroup::look_at(int64_t r) {
  Header header;
  const ssize_t count = ::recv(sockets_[r].fd(), &header, sizeof header, MSG_PEEK | MSG_DONTWAIT);
  if (count == 0) return lost(r, "its connection is closed");
  if (count < 0 && errno != EAGAIN && errno != EINTR) return lost(r, std::strerror(errno));
  // Data waits for its call.
  if (count != sizeof header || header.kind != Kind::kAbort) return {};
  MORACLE_CHECK(
      tcp::receive_all(sockets_[r], std::as_writable_bytes(std::span(&header, 1)), Deadline(0.2)));
  return reason_of(r, header);
}

Status TcpGroup::look() {
  for (int64_t r = 0; r < size(); ++r)
    if (r != rank()) MORACLE_CHECK(look_at(r));
  return {};
}

Error TcpGroup::reason_before(std::vector<Flow>& flows, const Flow& failed, const Error& failure) {
  if (!failed.sends) return failure;
  for (Flow& flow : flows) {
    if (flow.rank != failed.rank || flow.sends || flow.finished()) continue;
    if (const Status done = step(flow); !done) return done.error();
    if (!flow.finished()) return failure;
  }
  const Status told = look_at(failed.rank);
  return told ? failure : told.error();
}

Status TcpGroup::step(Flow& flow) {
  const int fd = sockets_[flow.rank].fd();
  while (!flow.finished()) {
    const std::span<std::byte> rest = flow.rest();
    const ssize_t count = flow.sends ? ::send(fd, rest.data(), rest.size(), MSG_NOSIGNAL)
                                     : ::recv(fd, rest.data(), rest.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return {};
    if (count == 0 && !flow.sends) return lost(flow.rank, "its connection is closed");
    if (count < 0) {
      if (flow.sends && errno == EPIPE) return lost(flow.rank, "its connection is closed");
      return lost(flow.rank, std::strerror(errno));
    }
    flow.done += static_cast<size_t>(count);
    if (!flow.sends && flow.done == sizeof(Header)) MORACLE_CHECK(take_header(flow));
  }
  return {};
}

Status TcpGroup::take_header(Flow& flow) {
  const Header& header = flow.header;
  if (header.kind == Kind::kAbort) return reason_of(flow.rank, header);
  if (header.kind == Kind::kData && flow.message != nullptr) {
    MORACLE_CHECK(size_message(*flow.message, header.bytes));
    flow.part = {flow.message->memory.data(), header.bytes};
    return {};
  }
  if (header.kind == Kind::kData && header.bytes == flow.part.bytes) return {};
  return Error{ErrorKind::kIo, "", str("rank ", flow.rank),
               str("a message of ", flow.part.bytes, " bytes"),
               str("it sent one of ", header.bytes, ": the ranks do not agree")};
}

Status TcpGroup::transfer(std::span<const Part> send, std::span<const Part> receive,
                          double seconds) {
  std::vector<Flow> flows;
  for (int64_t i = 1; i < size(); ++i) {
    const int64_t r = (rank() + i) % size();
    // Receive first: an abort that arrives says more than a connection that fails.
    if (receive[r].bytes > 0) flows.push_back({r, false, receive[r], {}, 0});
    if (send[r].bytes > 0) flows.push_back({r, true, send[r], {Kind::kData, send[r].bytes}, 0});
  }
  return finish(flows, seconds);
}

// An empty message is a header: its receiver does not know that it is empty.
Status TcpGroup::transfer_messages(std::span<const Part> send, std::span<Message> received,
                                   double seconds) {
  std::vector<Flow> flows;
  for (int64_t i = 1; i < size(); ++i) {
    const int64_t r = (rank() + i) % size();
    flows.push_back({r, false, {}, {}, 0, &received[r]});
    flows.push_back({r, true, send[r], {Kind::kData, send[r].bytes}, 0});
  }
  return finish(flows, seconds);
}

Status TcpGroup::finish(std::vector<Flow>& flows, double seconds) {
  const Deadline deadline(seconds);
  // Ranks that only send watch for the reason of one that stops.
  std::vector<pollfd> watched;
  for (;;) {
    watched.clear();
    for (Flow& flow : flows) {
      if (const Status done = step(flow); !done) return reason_before(flows, flow, done.error());
      if (flow.finished()) continue;
      const short events = flow.sends ? POLLOUT : POLLIN;
      watched.push_back({sockets_[flow.rank].fd(), events, 0});
    }
    if (watched.empty()) return {};
    if (deadline.passed()) break;
    ::poll(watched.data(), watched.size(), deadline.left_ms(100));
  }
  std::vector<int64_t> silent;
  for (const Flow& flow : flows) {
    if (flow.finished()) continue;
    if (std::find(silent.begin(), silent.end(), flow.rank) == silent.end())
      silent.push_back(flow.rank);
    if (flow.sends && flow.done > 0) torn_ = flow.rank;
  }
  std::sort(silent.begin(), silent.end());
  return silent_ranks(silent, seconds);
}

}  // namespace

Result<std::shared_ptr<Group>> open_tcp(const RankOptions& options) {
  MORACLE_TRY(std::vector<tcp::Socket> sockets, tcp::connect_all(options));
  return std::shared_ptr<Group>(std::make_shared<TcpGroup>(options, std::move(sockets)));
}

}  // namespace moracle
