// Ranks connected by MPI. Every operation is a set of nonblocking sends and receives that this code
// tests until a deadline: a rank that does not answer is then known by number, which MPI's own
// collectives would not tell.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "base/try.h"
#include "parallel/connect.h"
#include "parallel/mpi/mpi_life.h"
#include "parallel/mpi/mpi_load.h"

namespace moracle {
namespace {

constexpr int kDataTag = 1, kAbortTag = 2;
constexpr size_t kLongestAbort = 4096;

// The host and process of a rank. Ranks of one host can check that the process exists.
struct Process {
  char host[64];
  int64_t pid;
};

class MpiGroup final : public Group {
 public:
  /// `life`: null on a communicator of the engine, which begins and ends MPI itself.
  MpiGroup(const RankOptions& options, const MpiApi& mpi, std::unique_ptr<MpiLife> life)
      : Group(options), mpi_(mpi), life_(std::move(life)) {}
  ~MpiGroup() override;
  std::string_view name() const override { return "mpi"; }
  /// Learns which ranks run on this host.
  Status meet();
  Status look() override;
  void abort(const Error& reason) override;

 private:
  struct Flow {
    int64_t rank;
    int request;
    bool done;
    Message* message = nullptr;  // receives the bytes after the size of this request
  };
  Status transfer(std::span<const Block> send, std::span<const Block> receive,
                  double seconds) override;
  Status transfer_messages(std::span<const Block> send, std::span<Message> received,
                           double seconds) override;
  // Starts the transfer of a block, if it has bytes.
  Status start(int64_t r, const Block& block, bool sends, std::vector<Flow>& flows);
  // After the size has arrived: starts to receive the bytes. False: the message is empty.
  Result<bool> receive_sized(Flow& flow);
  Status wait(std::vector<Flow>& flows, double seconds);
  // Errors: an abort of a rank, with its reason; a process of this host that has ended.
  Status look_around(const std::vector<Flow>& flows);
  Status failed(Error error) {
    broken_ = true;
    return error;
  }

  const MpiApi& mpi_;
  std::unique_ptr<MpiLife> life_;
  std::vector<Process> processes_;
  // By rank. MPI may use them after a failed transfer.
  std::vector<uint64_t> sent_sizes_, received_sizes_;
  bool broken_ = false;
};

Status MpiGroup::meet() {
  Process own{};
  ::gethostname(own.host, sizeof own.host - 1);
  own.pid = ::getpid();
  std::vector<Process> all(size());
  MORACLE_CHECK(
      all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all))));
  for (Process& process : all)
    if (std::strcmp(process.host, own.host) != 0) process.pid = 0;
  processes_ = std::move(all);
  return {};
}

Status MpiGroup::look_around(const std::vector<Flow>& flows) {
  int there = 0, from = 0;
  size_t bytes = 0;
  if (const int code = mpi_.probe(kAbortTag, &there, &from, &bytes); code != 0)
    return failed(mpi_error(mpi_, code, "messages of other ranks"));
  if (there != 0) {
    std::string text(bytes, '\0');
    int request = 0, done = 0;
    mpi_.start_receive(text.data(), bytes, from, kAbortTag, &request);
    for (const Deadline soon(0.5); done == 0 && !soon.passed();) mpi_.test(request, &done);
    return failed(aborted_rank(from, text));
  }
  for (const Flow& flow : flows) {
    if (flow.done || processes_.empty() || processes_[flow.rank].pid == 0) continue;
    const auto pid = static_cast<pid_t>(processes_[flow.rank].pid);
    if (::kill(pid, 0) != 0 && errno == ESRCH)
      return failed(ended_rank(flow.rank, str("process ", pid, " is gone")));
  }
  return {};
}

Status MpiGroup::look() {
  std::vector<Flow> others;
  for (int64_t r = 0; r < size(); ++r)
    if (r != rank()) others.push_back({r, 0, false});
  return look_around(others);
}

Status MpiGroup::wait(std::vector<Flow>& flows, double seconds) {
  const Deadline deadline(seconds);
  size_t left = flows.size();
  if (left == 0) return {};  // no block has bytes
  for (int64_t round = 0;; ++round) {
    for (Flow& flow : flows) {
      if (flow.done) continue;
      int done = 0;
      if (const int code = mpi_.test(flow.request, &done); code != 0) {
        MORACLE_CHECK(look_around(flows));
        return failed(mpi_error(mpi_, code, str("rank ", flow.rank, " to take part")));
      }
      if (done == 0) continue;
      if (flow.message != nullptr) {
        MORACLE_TRY(const bool follows, receive_sized(flow));
        if (follows) continue;
      }
      flow.done = true;
      --left;
    }
    if (left == 0) return {};
    // Spin first: waits between the layers of a step are short. Sleep in long waits, to free the
    // CPU.
    constexpr int64_t kYields = 2000, kBetweenLooks = 256;
    if (round < kYields)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (round % kBetweenLooks != kBetweenLooks - 1) continue;
    MORACLE_CHECK(look_around(flows));
    if (deadline.passed()) break;
  }
  std::vector<int64_t> silent;
  for (const Flow& flow : flows)
    if (!flow.done && std::find(silent.begin(), silent.end(), flow.rank) == silent.end())
      silent.push_back(flow.rank);
  std::sort(silent.begin(), silent.end());
  return failed(silent_ranks(silent, seconds));
}

Status MpiGroup::start(int64_t r, const Block& block, bool sends, std::vector<Flow>& flows) {
  if (block.bytes == 0) return {};
  const int peer = static_cast<int>(r);
  int request = 0;
  const int code = sends ? mpi_.start_send(block.data, block.bytes, peer, kDataTag, &request)
                         : mpi_.start_receive(block.data, block.bytes, peer, kDataTag, &request);
  if (code != 0) return failed(mpi_error(mpi_, code, str("rank ", r, " to take part")));
  flows.push_back({r, request, false});
  return {};
}

Result<bool> MpiGroup::receive_sized(Flow& flow) {
  Message& message = *std::exchange(flow.message, nullptr);
  if (Status sized = size_message(message, received_sizes_[flow.rank]); !sized)
    MORACLE_CHECK(failed(sized.error()));
  std::vector<Flow> started;
  MORACLE_CHECK(start(flow.rank, {message.memory.data(), message.bytes}, false, started));
  if (!started.empty()) flow.request = started[0].request;
  return !started.empty();
}

// Sends the size, then the bytes. MPI keeps the order of messages, so the sender does not wait in
// between.
Status MpiGroup::transfer_messages(std::span<const Block> send, std::span<Message> received,
                                   double seconds) {
  std::vector<Flow> flows;
  sent_sizes_.resize(size());
  received_sizes_.resize(size());
  const auto size_of = [](uint64_t& size) {
    return Block{reinterpret_cast<std::byte*>(&size), sizeof size};
  };
  for (int64_t i = 1; i < size(); ++i) {
    const int64_t r = (rank() + size() - i) % size();
    MORACLE_CHECK(start(r, size_of(received_sizes_[r]), false, flows));
    flows.back().message = &received[r];
  }
  for (int64_t i = 1; i < size(); ++i) {
    const int64_t r = (rank() + i) % size();
    sent_sizes_[r] = send[r].bytes;
    MORACLE_CHECK(start(r, size_of(sent_sizes_[r]), true, flows));
    MORACLE_CHECK(start(r, send[r], true, flows));
  }
  return wait(flows, seconds);
}

Status MpiGroup::transfer(std::span<const Block> send, std::span<const Block> receive,
                          double seconds) {
  std::vector<Flow> flows;
  for (int64_t i = 1; i < size(); ++i) {
    const int64_t r = (rank() + size() - i) % size();
    MORACLE_CHECK(start(r, receive[r], false, flows));
  }
  for (int64_t i = 1; i < size(); ++i) {
    const int64_t r = (rank() + i) % size();
    MORACLE_CHECK(start(r, send[r], true, flows));
  }
  return wait(flows, seconds);
}

void MpiGroup::abort(const Error& reason) {
  broken_ = true;
  const std::string text = reason.to_string().substr(0, kLongestAbort);
  std::vector<int> requests;
  for (int64_t r = 0; r < size(); ++r) {
    int request = 0;
    if (r != rank() &&
        mpi_.start_send(text.data(), text.size(), static_cast<int>(r), kAbortTag, &request) == 0)
      requests.push_back(request);
  }
  // MPI makes progress only inside its calls: call it until the reason has been delivered.
  for (const Deadline soon(0.5); !soon.passed();) {
    for (const int request : requests) {
      int done = 0;
      mpi_.test(request, &done);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

MpiGroup::~MpiGroup() {
  // MPI_Finalize waits for all ranks: without one it would never return. A process that ends
  // without it makes mpirun end the others, also those that are stopped. MPI_Abort would do the
  // same, but mpirun of Open MPI 4.1.4 hung when several ranks called it at once.
  const bool together = !broken_ && barrier();
  if (life_ != nullptr)
    life_->end(together);
  else if (together)
    mpi_.leave();
}

Result<std::shared_ptr<Group>> join_engine(const MpiApi& mpi, RankOptions options) {
  MpiRanks ranks{};
  if (const int code = mpi.join(options.mpi_communicator, &ranks); code != 0)
    return mpi_error(mpi, code, "a copy of the engine's communicator");
  if (ranks.refused != nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "mpi_communicator",
                 str("one group, after MPI_Init_thread of ", mpi.library,
                     " with at least MPI_THREAD_SERIALIZED"),
                 ranks.refused};
  }
  options.rank = ranks.rank, options.size = ranks.size;
  options.local_rank = ranks.local_rank, options.local_size = ranks.local_size;
  auto group = std::make_shared<MpiGroup>(options, mpi, nullptr);
  MORACLE_CHECK(group->meet());
  return std::shared_ptr<Group>(std::move(group));
}

}  // namespace

Result<std::shared_ptr<Group>> open_mpi(const RankOptions& options) {
  if (!options.secret.empty()) {
    return Error{ErrorKind::kUnsupported, "", "secret",
                 "the transport tcp: MPI connects ranks without it", "the transport is mpi"};
  }
  MORACLE_TRY(const MpiApi* const mpi, mpi_api());
  if (options.mpi_communicator != nullptr) return join_engine(*mpi, options);
  int rank = 0, size = 0;
  auto life = std::make_unique<MpiLife>(*mpi);
  MORACLE_CHECK(life->start(rank, size, options.timeout_seconds));
  if (rank != options.rank || size != options.size) {
    life->end(true);
    return Error{
        ErrorKind::kInvalidArgument, "", "mpi",
        str("rank ", options.rank, " of ", options.size, ", as the launcher's variables say"),
        str(mpi->library, " says rank ", rank, " of ", size,
            ": the launcher belongs to another MPI")};
  }
  auto group = std::make_shared<MpiGroup>(options, *mpi, std::move(life));
  MORACLE_CHECK(group->meet());
  return std::shared_ptr<Group>(std::move(group));
}

}  // namespace moracle
