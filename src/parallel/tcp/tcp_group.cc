// Ranks connected by one socket for each pair. The end of a process closes its sockets, so that the
// others know at once which rank is gone.
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
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

// One message of a transfer in one direction: header, payload, tag of the payload.
struct Flow {
  int64_t rank = 0;
  bool sends = false;
  Group::Block payload;
  Header header;
  Group::Message* message = nullptr;  // receives a payload of the size that the header gives
  size_t done = 0;                    // bytes of header, payload and tag together
  bool begun = false;                 // the header is checked or made; `sum` is started
  size_t summed = 0;                  // bytes of the payload in `sum`
  tcp::PayloadTag sum = {};
  bool tagged = false;  // `tag` is that of the whole payload
  tcp::Tag tag = {};
  std::array<iovec, 3> buffers = {};

  size_t payload_end() const { return sizeof header + payload.bytes; }
  bool finished() const { return done == payload_end() + sizeof tag; }
  // The bytes of the next system call. Bytes of the payload are sent once they are in `sum`.
  std::span<iovec> rest() {
    size_t count = 0;
    const auto add = [&](void* data, size_t begin, size_t end) {
      const size_t first = std::max(begin, done);
      if (first < end) buffers[count++] = {static_cast<char*>(data) + (first - begin), end - first};
    };
    const size_t of_header = sizeof header, ready = of_header + (sends ? summed : payload.bytes);
    add(&header, 0, of_header);
    if (!sends && count > 0) return {buffers.data(), count};  // the header gives the size
    add(payload.data, of_header, ready);
    if (!sends || tagged) add(&tag, payload_end(), payload_end() + sizeof tag);
    return {buffers.data(), count};
  }
  void sum_chunk() {
    const size_t count = std::min(tcp::PayloadTag::kChunk, payload.bytes - summed);
    sum.add({payload.data + summed, count});
    summed += count;
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
  Status transfer(std::span<const Block> send, std::span<const Block> receive,
                  double seconds) override;
  Status transfer_messages(std::span<const Block> send, std::span<Message> received,
                           double seconds) override;
  Status finish(std::vector<Flow>& flows, double seconds);
  Status step(Flow& flow);
  void prepare(Flow& flow);
  Status take(Flow& flow);
  Status take_header(Flow& flow);
  Status look_at(int64_t rank);
  Error reason_of(int64_t rank, const Header& header);
  // The abort reason that the rank of a failed flow sent before it ended; else the failure.
  Error reason_before(std::vector<Flow>& flows, const Flow& failed, const Error& failure);
  Error lost(int64_t rank, const std::string& how);

  std::vector<tcp::Link> links_;
  int64_t torn_ = -1;  // this rank's message to it is incomplete: no other can follow
};

Error TcpGroup::reason_of(int64_t rank, const Header& header) {
  std::string text(std::min(header.bytes, kLongestReason), '\0');
  if (!tcp::receive_payload(links_[rank], std::as_writable_bytes(std::span(text)), Deadline(0.2)))
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

// Prepares the next bytes to send. The header is made as late as possible: an abort that is sent
// first takes the number of this message.
void TcpGroup::prepare(Flow& flow) {
  const tcp::Seal& out = links_[flow.rank].out;
  if (!flow.begun) {
    flow.begun = true;
    flow.header.own = out.of_header(flow.header);
    flow.sum = out.of_payload();
  }
  const bool all_sent = flow.done == sizeof(Header) + flow.summed;
  if (flow.summed < flow.payload.bytes && (flow.summed == 0 || all_sent)) flow.sum_chunk();
  if (flow.summed < flow.payload.bytes || flow.tagged) return;
  flow.tag = flow.sum.finish();
  flow.tagged = true;
}

Status TcpGroup::step(Flow& flow) {
  tcp::Link& link = links_[flow.rank];
  const int fd = link.socket.fd();
  while (!flow.finished()) {
    if (flow.sends) prepare(flow);
    const std::span<iovec> rest = flow.rest();
    msghdr message{};
    message.msg_iov = rest.data();
    message.msg_iovlen = rest.size();
    const ssize_t count =
        flow.sends ? ::sendmsg(fd, &message, MSG_NOSIGNAL) : ::recvmsg(fd, &message, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return {};
    if (count == 0 && !flow.sends) return lost(flow.rank, "its connection is closed");
    if (count < 0) {
      if (flow.sends && errno == EPIPE) return lost(flow.rank, "its connection is closed");
      return lost(flow.rank, std::strerror(errno));
    }
    if (flow.sends && flow.done == 0) link.out.next();
    flow.done += static_cast<size_t>(count);
    if (!flow.sends) MORACLE_CHECK(take(flow));
  }
  return {};
}

// Checks the received bytes.
Status TcpGroup::take(Flow& flow) {
  if (flow.done < sizeof(Header)) return {};
  tcp::Seal& in = links_[flow.rank].in;
  if (!flow.begun) {
    MORACLE_CHECK(take_header(flow));
    flow.begun = true;
    flow.sum = in.of_payload();
  }
  const size_t there = std::min(flow.done - sizeof(Header), flow.payload.bytes);
  while (flow.summed < flow.payload.bytes &&
         (there == flow.payload.bytes || there >= flow.summed + tcp::PayloadTag::kChunk)) {
    flow.sum_chunk();
  }
  if (!flow.finished()) return {};
  if (flow.tag != flow.sum.finish()) return changed_message(flow.rank);
  in.next();
  return {};
}

Status TcpGroup::take_header(Flow& flow) {
  const Header& header = flow.header;
  if (header.own != links_[flow.rank].in.of_header(header)) return changed_message(flow.rank);
  if (header.kind == Kind::kAbort) return reason_of(flow.rank, header);
  if (header.kind == Kind::kData && flow.message != nullptr) {
    MORACLE_CHECK(size_message(*flow.message, header.bytes));
    flow.payload = {flow.message->memory.data(), header.bytes};
    return {};
  }
  if (header.kind == Kind::kData && header.bytes == flow.payload.bytes) return {};
  return Error{ErrorKind::kIo, "", str("rank ", flow.rank),
               str("a message of ", flow.payload.bytes, " bytes"),
               str("it sent one of ", header.bytes, ": the ranks do not agree")};
}

Status TcpGroup::transfer(std::span<const Block> send, std::span<const Block> receive,
                          double seconds) {
  std::vector<Flow> flows;
  for (int64_t i = 1; i < size(); ++i) {
    const int64_t r = (rank() + i) % size();
    // Receive first: a received abort gives a better reason than a failed connection.
    if (receive[r].bytes > 0) flows.push_back({r, false, receive[r], {}});
    if (send[r].bytes > 0) flows.push_back({r, true, send[r], {Kind::kData, send[r].bytes, {}}});
  }
  return finish(flows, seconds);
}

// An empty message still has a header: its receiver does not know the size.
Status TcpGroup::transfer_messages(std::span<const Block> send, std::span<Message> received,
                                   double seconds) {
  std::vector<Flow> flows;
  for (int64_t i = 1; i < size(); ++i) {
    const int64_t r = (rank() + i) % size();
    flows.push_back({.rank = r, .message = &received[r]});
    flows.push_back({r, true, send[r], {Kind::kData, send[r].bytes, {}}});
  }
  return finish(flows, seconds);
}

Status TcpGroup::finish(std::vector<Flow>& flows, double seconds) {
  const Deadline deadline(seconds);
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
