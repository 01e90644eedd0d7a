// Ranks connected by one socket for each pair. The end of a process closes its sockets, so that the
// others know at once which rank is gone.
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

using tcp::Header;
using tcp::Kind;
constexpr uint64_t kLongestReason = 4096;

// One message of one transfer, in one direction.
struct Flow {
  int64_t rank = 0;
  bool sends = false;
  Group::Part part;
  Header header;
  size_t done = 0;                    // of header and part together
  bool sealed = false;                // the header of a part to send has its tags
  Group::Message* message = nullptr;  // takes a part whose size the header tells
  std::span<const std::byte> bytes() const { return {part.data, part.bytes}; }
  bool finished() const { return done == sizeof header + part.bytes; }
  // The next bytes: of the header, then of the part.
  std::span<std::byte> rest() {
    if (done < sizeof header) return std::as_writable_bytes(std::span(&header, 1)).subspan(done);
    return {part.data + (done - sizeof header), sizeof header + part.bytes - done};
  }
};

class TcpGroup final : public Group {
 public:
  TcpGroup(const RankOptions& options, std::vector<tcp::Link> links)
      : Group(options), links_(std::move(links)) {}
  std::string_view name() const override { return "tcp"; }

  Status look() override;
  void abort(const Error& reason) override {
    const std::string text = reason.to_string().substr(0, kLongestReason);
    const Deadline soon(0.2);
    for (int64_t r = 0; r < size(); ++r) {
      if (!links_[r].socket.open() || r == torn_) continue;
      // A rank that is not receiving misses the reason; it sees the closed socket instead.
      (void)tcp::send_message(links_[r], Kind::kAbort, std::as_bytes(std::span(text)), soon).ok();
    }
  }

 private:
  Status transfer(std::span<const Part> send, std::span<const Part> receive,
                  double seconds) override;
  Status transfer_messages(std::span<const Part> send, std::span<Message> received,
                           double seconds) override;
  Status finish(std::vector<Flow>& flows, double seconds);
  Status step(Flow& flow);
  void seal(Flow& flow);
  Status take_header(Flow& flow);
  Status take_part(const Flow& flow);
  Status look_at(int64_t rank);
  Error reason_of(int64_t rank, const Header& header);
  // The reason that the rank of a failed flow sent before it ended, or else the failure.
  Error reason_before(std::vector<Flow>& flows, const Flow& failed, const Error& failure);
  Error lost(int64_t rank, const std::string& how);

  std::vector<tcp::Link> links_;
  int64_t torn_ = -1;  // this rank's message to it is incomplete: no other can follow
  // Of the last part of a transfer that was sealed: others often get the same.
  Group::Part sealed_;
  tcp::Tag tag_ = {};
};

Error TcpGroup::reason_of(int64_t rank, const Header& header) {
  std::string text(std::min(header.bytes, kLongestReason), '\0');
  const auto bytes = std::as_writable_bytes(std::span(text));
  if (!tcp::receive_all(links_[rank].socket, bytes, Deadline(0.2)) ||
      header.part != links_[rank].in.of_part(bytes)) {
    text = "its reason did not arrive";
  }
  return aborted_rank(rank, text);
}

Error TcpGroup::lost(int64_t rank, const std::string& how) {
  torn_ = rank;
  return ended_rank(rank, how);
}

// Between messages of that rank.
Status TcpGroup::look_at(int64_t r) {
  Header header;
  const int fd = links_[r].socket.fd();
  const ssize_t count = ::recv(fd, &header, sizeof header, MSG_PEEK | MSG_DONTWAIT);
  if (count == 0) return lost(r, "its connection is closed");
  if (count < 0 && errno != EAGAIN && errno != EINTR) return lost(r, std::strerror(errno));
  // Data waits for its call.
  if (count != sizeof header || header.kind != Kind::kAbort) return {};
  if (header.own != links_[r].in.of_header(header)) return changed_message(r);
  MORACLE_CHECK(tcp::receive_all(links_[r].socket, std::as_writable_bytes(std::span(&header, 1)),
                                 Deadline(0.2)));
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

// Only when the socket takes bytes: an abort that comes first has the number of this message.
void TcpGroup::seal(Flow& flow) {
  const tcp::Seal& out = links_[flow.rank].out;
  const bool known = out.shares_parts() && sealed_.data == flow.part.data &&
                     sealed_.bytes == flow.part.bytes && flow.part.bytes > 0;
  if (!known) tag_ = out.of_part(flow.bytes());
  sealed_ = flow.part;
  flow.header.part = tag_;
  flow.header.own = out.of_header(flow.header);
  flow.sealed = true;
}

Status TcpGroup::step(Flow& flow) {
  tcp::Link& link = links_[flow.rank];
  const int fd = link.socket.fd();
  while (!flow.finished()) {
    if (flow.sends && !flow.sealed) seal(flow);
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
    if (flow.sends && flow.done == 0) link.out.next();
    flow.done += static_cast<size_t>(count);
    if (flow.sends) continue;
    if (flow.done == sizeof(Header)) MORACLE_CHECK(take_header(flow));
    if (flow.finished()) MORACLE_CHECK(take_part(flow));
  }
  return {};
}

Status TcpGroup::take_part(const Flow& flow) {
  tcp::Seal& in = links_[flow.rank].in;
  if (flow.header.part != in.of_part(flow.bytes())) return changed_message(flow.rank);
  in.next();
  return {};
}

Status TcpGroup::take_header(Flow& flow) {
  const Header& header = flow.header;
  if (header.own != links_[flow.rank].in.of_header(header)) return changed_message(flow.rank);
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
    if (receive[r].bytes > 0) flows.push_back({r, false, receive[r], {}});
    if (send[r].bytes > 0) flows.push_back({r, true, send[r], {Kind::kData, send[r].bytes}});
  }
  return finish(flows, seconds);
}

// An empty message is a header: its receiver does not know that it is empty.
Status TcpGroup::transfer_messages(std::span<const Part> send, std::span<Message> received,
                                   double seconds) {
  std::vector<Flow> flows;
  for (int64_t i = 1; i < size(); ++i) {
    const int64_t r = (rank() + i) % size();
    flows.push_back({.rank = r, .message = &received[r]});
    flows.push_back({r, true, send[r], {Kind::kData, send[r].bytes}});
  }
  return finish(flows, seconds);
}

Status TcpGroup::finish(std::vector<Flow>& flows, double seconds) {
  const Deadline deadline(seconds);
  sealed_ = {};  // the memory may have other bytes now
  // Ranks that only send watch for the reason of one that stops.
  std::vector<pollfd> watched;
  for (;;) {
    watched.clear();
    for (Flow& flow : flows) {
      if (const Status done = step(flow); !done) return reason_before(flows, flow, done.error());
      if (flow.finished()) continue;
      const short events = flow.sends ? POLLOUT : POLLIN;
      watched.push_back({links_[flow.rank].socket.fd(), events, 0});
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
  MORACLE_TRY(std::vector<tcp::Link> links, tcp::connect_all(options));
  RankOptions known = options;
  known.secret.clear();  // the links have keys of their own
  return std::shared_ptr<Group>(std::make_shared<TcpGroup>(known, std::move(links)));
}

}  // namespace moracle
