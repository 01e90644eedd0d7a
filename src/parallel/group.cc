// Collectives on host memory, each as one all-to-all of blocks. Opens a group over a transport.
#include <cstring>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "parallel/connect.h"

namespace moracle {
namespace {

Error bad_ranks(std::string place, std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", std::move(place), std::move(need), std::move(fact)};
}

// A group of one: every transfer has only the rank's own block.
class OneProcess final : public Group {
 public:
  explicit OneProcess(const RankOptions& options) : Group(options) {}
  std::string_view name() const override { return "one"; }
  void abort(const Error&) override {}

 private:
  Status transfer(std::span<const Block>, std::span<const Block>, double) override { return {}; }
  Status transfer_messages(std::span<const Block>, std::span<Message>, double) override {
    return {};
  }
};

constexpr Transport kTransports[] = {
#include "parallel/transports.inc"
};

}  // namespace

Status Group::move(std::span<const Block> send, std::span<const Block> receive, double seconds) {
  const auto own = static_cast<size_t>(rank());
  if (static_cast<int64_t>(send.size()) != size() || receive.size() != send.size() ||
      send[own].bytes != receive[own].bytes) {
    return bad_ranks(
        "exchange", str("one part for each of ", size(), " ranks"),
        str("there are ", send.size(), " to send and ", receive.size(), " to receive"));
  }
  const Block &from = send[own], &to = receive[own];
  if (from.bytes > 0 && from.data != to.data) std::memcpy(to.data, from.data, from.bytes);
  return size() == 1 ? Status() : transfer(send, receive, seconds);
}

Status Group::exchange(std::span<const Block> send, std::span<const Block> receive) {
  return move(send, receive, options_.timeout_seconds);
}

Status Group::size_message(Message& message, size_t bytes) {
  return or_out_of_memory("message", [&]() -> Status {
    if (message.memory.size() < bytes) message.memory.resize(bytes);
    message.bytes = bytes;
    return {};
  });
}

Status Group::exchange_messages(std::span<const Block> send, std::span<Message> received) {
  if (static_cast<int64_t>(send.size()) != size() || received.size() != send.size()) {
    return bad_ranks(
        "exchange", str("one message for each of ", size(), " ranks"),
        str("there are ", send.size(), " to send and ", received.size(), " to receive"));
  }
  const Block& own = send[rank()];
  MORACLE_CHECK(size_message(received[rank()], own.bytes));
  if (own.bytes > 0) std::memcpy(received[rank()].memory.data(), own.data, own.bytes);
  return transfer_messages(send, received, options_.timeout_seconds);
}

Status Group::broadcast(std::span<std::byte> bytes, int64_t from, bool patient) {
  if (from < 0 || from >= size())
    return bad_ranks("broadcast", str("a rank from 0 to ", size() - 1), str("it is ", from));
  std::vector<Block> send(size()), receive(size());
  const Block whole{bytes.data(), bytes.size()};
  if (rank() == from) {
    std::fill(send.begin(), send.end(), whole);
    receive[from] = whole;
  } else {
    receive[from] = whole;
  }
  const bool waits = patient && rank() != from;
  return move(send, receive, waits ? 0 : options_.timeout_seconds);
}

Status Group::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  if (all.size() != mine.size() * size())
    return bad_ranks("all-gather", str(mine.size() * size(), " bytes"), str("it has ", all.size()));
  // Parts that are sent are only read.
  const Block own{const_cast<std::byte*>(mine.data()), mine.size()};
  const std::vector<Block> send(size(), own);
  std::vector<Block> receive;
  for (int64_t r = 0; r < size(); ++r)
    receive.push_back({all.data() + r * mine.size(), mine.size()});
  return move(send, receive, options_.timeout_seconds);
}

Status Group::barrier() {
  const std::byte here{1};
  std::vector<std::byte> all(size());
  return all_gather({&here, 1}, all);
}

std::span<const Transport> transports() {
  return kTransports;
}

Result<std::shared_ptr<Group>> open_group(const RankOptions& options) {
  const bool of_engine = options.mpi_communicator != nullptr;  // it knows rank and size
  if (!of_engine && (options.size < 1 || options.rank < 0 || options.rank >= options.size)) {
    return bad_ranks("ranks", "at least one rank, and a rank below their number",
                     str("rank ", options.rank, " of ", options.size));
  }
  constexpr double kMostSeconds = 1e6;
  if (!(options.timeout_seconds > 0 && options.timeout_seconds <= kMostSeconds))
    return bad_ranks("timeout_seconds", "seconds above 0, at most a million",
                     str("it is ", options.timeout_seconds));
  if (of_engine) return open_mpi(options);
  if (options.size == 1) return std::shared_ptr<Group>(std::make_shared<OneProcess>(options));
  std::string wanted = options.transport;
  if (wanted == "auto") wanted = options.mpi_launcher ? "mpi" : "tcp";
  std::vector<std::string_view> names{"auto"};
  for (const Transport& transport : kTransports) {
    names.push_back(transport.name);
    if (transport.name == wanted) return transport.open(options);
  }
  return bad_ranks("transport", "one of " + join(names), str("it is '", wanted, "'"));
}

}  // namespace moracle
