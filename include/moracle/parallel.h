// Several processes (ranks) that hold one model together: a Group connects them, an Exchange moves
// activations between their devices.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/base.h"
#include "moracle/device.h"
#include "moracle/moe.h"
#include "moracle/oracle.h"

namespace moracle MORACLE_API {

/// What a launcher says about this process. The library reads no environment: the command does.
struct RankOptions {
  int64_t rank = 0, size = 1;
  int64_t local_rank = 0, local_size = 1;  ///< among the ranks of this host
  /// "auto", or the name of one of transports().
  std::string transport = "auto";
  bool mpi_launcher = false;     ///< started by mpirun, or by Slurm with MPI
  std::string address = "";      ///< tcp: the host of rank 0
  int port = 0;                  ///< tcp: rank 0 listens there
  double timeout_seconds = 120;  ///< the longest wait for another rank
  /// tcp: a rank joins only if it knows this secret of the job, of at least 16 bytes, and messages
  /// are authenticated. Nothing is encrypted. "": any process that speaks the protocol may join.
  std::string secret = "";
  /// The engine's MPI_Comm, after its MPI_Init_thread with at least MPI_THREAD_SERIALIZED. The
  /// group gets a communicator of its own (MPI_Comm_dup), with the ranks of this one; `rank`,
  /// `size`, `local_rank`, `local_size` and `transport` are not read. MPI must be the library that
  /// the module moracle_mpi was built with, and the group must end before MPI_Finalize. One such
  /// group at a time. Null: `transport` decides.
  const void* mpi_communicator = nullptr;
};

/// The ranks of a job and their host memory. Every rank makes the same calls in the same order,
/// from one thread at a time. Every call ends within the timeout of RankOptions. Errors (kIo): a
/// rank that ended, stopped with an error, or did not answer in time; the error names it. After an
/// error only abort() may be called.
class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  /// "one", "mpi" or "tcp".
  virtual std::string_view name() const = 0;
  int64_t rank() const { return options_.rank; }
  int64_t size() const { return options_.size; }
  const RankOptions& options() const { return options_; }

  struct Block {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  /// Block r of `send` goes to rank r, which receives it as block `rank()` of its `receive`. The
  /// sizes must agree. A block may be empty.
  Status exchange(std::span<const Block> send, std::span<const Block> receive);
  /// A message of a size that its receiver does not know. Use one again to keep its memory.
  struct Message {
    std::vector<std::byte> memory;  ///< at least `bytes`
    size_t bytes = 0;
  };
  /// As exchange, without known sizes: message r of `received` comes from rank r. One message
  /// instead of two, where the receiver would wait for the size first.
  Status exchange_messages(std::span<const Block> send, std::span<Message> received);
  /// Copies the bytes of rank `from` to all ranks, which pass equally many. `patient`: the
  /// others wait for `from` without a limit of time, because it waits for a person.
  Status broadcast(std::span<std::byte> bytes, int64_t from, bool patient = false);
  /// all [size * mine.size()]: the bytes of each rank, by rank.
  Status all_gather(std::span<const std::byte> mine, std::span<std::byte> all);
  /// Waits until every rank is here.
  Status barrier();
  /// Looks whether a rank has ended or stopped, and waits for nothing. A transport that learns this
  /// only in a call finds nothing here. Errors: as those of a call.
  virtual Status look() { return {}; }
  /// Tells every rank that this one stops, and why. Their next or current call returns the reason.
  virtual void abort(const Error& reason) = 0;

 protected:
  explicit Group(RankOptions options) : options_(std::move(options)) {}
  /// exchange, except the rank's own block. `seconds` 0: no limit of time.
  virtual Status transfer(std::span<const Block> send, std::span<const Block> receive,
                          double seconds) = 0;
  /// exchange_messages, except the rank's own one.
  virtual Status transfer_messages(std::span<const Block> send, std::span<Message> received,
                                   double seconds) = 0;
  /// Makes memory for a message of `bytes`. Errors: kOutOfMemory.
  static Status size_message(Message& message, size_t bytes);

 private:
  Status move(std::span<const Block> send, std::span<const Block> receive, double seconds);
  RankOptions options_;
};

/// One way to connect processes.
struct Transport {
  std::string_view name, summary;
  /// Null: this build has none, and `lacks` says what it needs.
  Result<std::shared_ptr<Group>> (*open)(const RankOptions& options) = nullptr;
  std::string_view lacks = {};
};
std::span<const Transport> transports();

/// Connects this process with the others, or makes a group of one. Errors: wrong numbers; a
/// transport that is unknown, or that this build or machine lacks; ranks that do not come in time.
Result<std::shared_ptr<Group>> open_group(const RankOptions& options);

struct ExpertRows;  ///< internal

/// Operations between the devices of a group's ranks. They are enqueued on a stream like Ops; on a
/// CPU they are done when the call returns. Every rank enqueues the same operations in the same
/// order. Every rank gets the same bits of a sum. Errors: those of Group; on a device that
/// enqueues, also at a later synchronize().
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// The name of its row in exchanges().
  virtual std::string_view name() const = 0;
  /// True if Device::record can record all_reduce, all_gather and reduce_scatter.
  virtual bool in_graphs() const { return false; }
  /// True if device memory is host memory, so that Group's own calls can move it.
  virtual bool through_host() const { return false; }

  /// x becomes the sum of all ranks' x, in place. f32, bf16 or f16; equal shapes; stride = cols.
  virtual Status all_reduce(const Matrix& x, Stream stream) = 0;
  /// all [size * bytes]: `mine` of each rank, by rank. `mine` may be its own block of `all`.
  virtual Status all_gather(const void* mine, size_t bytes, void* all, Stream stream) = 0;
  /// Several gathers as one operation, which can take less time.
  struct Gathered {
    const void* mine = nullptr;
    size_t bytes = 0;
    void* all = nullptr;
  };
  virtual Status all_gather(std::span<const Gathered> gathered, Stream stream);
  /// mine = the sum over ranks of rows [rank * mine.rows, …) of their `all`, which has size *
  /// mine.rows rows and keeps its values or not. stride = cols.
  virtual Status reduce_scatter(const Matrix& all, const Matrix& mine, Stream stream) = 0;
  /// As Group::exchange, on device memory. The host knows the sizes.
  virtual Status exchange(std::span<const Group::Block> send, std::span<const Group::Block> receive,
                          Stream stream) = 0;

  /// Scratch of combine_scatter: the rows of each token in the order of addition (internal).
  struct RowOrder {
    int32_t* rows = nullptr;   ///< [num_tokens, top_k]
    float* weights = nullptr;  ///< likewise
  };
  /// True if combine_scatter serves `mine` and takes less time than Ops::combine and reduce_scatter
  /// (internal).
  virtual bool fuses_combine(const Matrix&) const { return false; }
  /// Ops::combine and reduce_scatter in one kernel, with the same bits: each rank adds its rows of
  /// every token, and `mine` becomes the sum over ranks for the tokens [rank * mine.rows, …).
  /// Requires fuses_combine, and rows in the dtype of `mine` (internal).
  virtual Status combine_scatter(const ExpertRows& rows, const RowOrder& order, const Matrix& mine,
                                 Stream stream);
};

/// One row of the table of exchanges, in order of preference.
struct ExchangeRow {
  std::string_view name, summary;
  Platform platform = Platform::kCpu;
  bool any_platform = false;
  int64_t max_ranks = 0;  ///< 0: no limit
  bool one_host = false;  ///< needs all ranks on one host
  /// Null: this build has none.
  Result<std::unique_ptr<Exchange>> (*make)(std::shared_ptr<Group> group,
                                            std::shared_ptr<Device> device) = nullptr;
  /// What this machine lacks, found at run time; empty: nothing. Null: needs nothing.
  std::string (*lacks)() = nullptr;
  std::string_view build = {};  ///< what the build needs, for rows without `make`
};
std::span<const ExchangeRow> exchanges();
/// The row of this name; null for "auto". Errors: an unknown name, with the list of rows.
Result<const ExchangeRow*> parse_exchange(std::string_view name);

/// What an exchange has to serve.
struct ExchangeRequest {
  Platform platform = Platform::kCpu;
  int64_t size = 1;                  ///< ranks
  const ExchangeRow* row = nullptr;  ///< the only row to consider; null: all rows
  bool one_host = true;              ///< all ranks
  int64_t num_devices = 0;           ///< of the platform, on each host; 0: unknown
};

struct ExchangeVerdict {
  const ExchangeRow* row = nullptr;
  std::vector<Reason> reasons;  ///< empty: serves
};
struct ExchangeSelection {
  std::vector<ExchangeVerdict> considered;  ///< every row, in order
  const ExchangeRow* chosen = nullptr;      ///< the first row without objections; null: none
};
/// `other_machine`: assume a build and a machine that have everything, as known machines do.
ExchangeSelection select_exchange(const ExchangeRequest& request, bool other_machine = false);
/// The selection as text for users: one line per row.
std::string explain(const ExchangeSelection& selection);

/// Makes the exchange that select_exchange chooses. Errors: none serves, with all reasons.
Result<std::unique_ptr<Exchange>> open_exchange(const std::shared_ptr<Group>& group,
                                                const std::shared_ptr<Device>& device,
                                                const ExchangeRow* row = nullptr);
/// The exchange "nccl" on the engine's communicator. `communicator`: an ncclComm_t of the device's
/// GPU, with the ranks of `group`, made by the libnccl.so.2 that this process has loaded. It is not
/// finalized, aborted or destroyed here, and must outlive the exchange. Errors: a build or machine
/// without NCCL; another device, rank or size than those of the communicator.
Result<std::unique_ptr<Exchange>> connect_nccl(const std::shared_ptr<Group>& group,
                                               const std::shared_ptr<Device>& device,
                                               void* communicator);

/// How tokens and experts are spread.
enum class Spread : uint8_t {
  kReplicated,  ///< every rank has the same tokens; its experts' outputs are summed over the ranks
  kDispatched,  ///< every rank has its own tokens: dispatch to their experts, then combine
};
std::string_view name(Spread spread);

/// Bytes that one rank sends per token of a layer, on average over the ranks.
struct ExchangeBytes {
  int64_t dispatch = 0;  ///< tokens to their experts; replicated: the reduce-scatter of the sum
  int64_t combine = 0;   ///< results to their tokens; replicated: the all-gather of the sum
};
/// `activation`: the device's dtype of activations. `deterministic`: the bits of one process.
/// Counts codes where dispatched tokens are quantized before they are sent. Kernels that fuse a
/// layer of few tokens, and layers with adapters, take the activations themselves.
ExchangeBytes exchange_bytes(const LayerSpec& layer, int64_t ranks, Spread spread, DType activation,
                             bool deterministic);

/// What the layers of a model share to run their experts over ranks: the ranks, and memory. Every
/// rank makes the same calls of its layers in the same order, from one thread at a time.
class ExpertParallel {
 public:
  /// `spread`: which tokens a rank has before and after a layer. `same_bits`: results have the bits
  /// of one process, which takes top_k times the bytes between replicated ranks.
  ExpertParallel(std::shared_ptr<Group> group, std::shared_ptr<Exchange> exchange,
                 std::shared_ptr<Device> device, Spread spread, bool same_bits = false);
  ~ExpertParallel();
  Spread spread() const;

 private:
  friend class ParallelMoe;
  struct State;
  std::unique_ptr<State> state_;
};

/// The experts of one layer over all ranks of a group.
class ParallelMoe {
 public:
  /// `moe` holds this rank's experts, as Request::parallel placed them. An expert may be on several
  /// ranks, which then share its tokens. Every rank calls it for the same layers in the same order,
  /// before graphs are recorded. Errors: an expert that no rank holds; a plan for batched
  /// activations; memory; those of Group.
  static Result<ParallelMoe> make(FusedMoe moe, std::shared_ptr<ExpertParallel> ranks);
  ParallelMoe(ParallelMoe&&) noexcept;
  ParallelMoe& operator=(ParallelMoe&&) noexcept;
  ~ParallelMoe();

  /// FusedMoe::apply over the experts of all ranks. hidden and output: [num_tokens, hidden_size] in
  /// the plan's activation dtype, without gaps; topk_ids: ids among all experts.
  /// - Replicated: every rank passes the same tokens and gets the same output. All work is
  ///   enqueued; Device::record can record it where Exchange::in_graphs().
  /// - Dispatched: every rank passes its own tokens, none or up to the planned maximum, and gets
  ///   their outputs. The host waits for the ids. No adapters.
  /// Errors: as FusedMoe::apply; those of Exchange and Group.
  Status apply(const ConstMatrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
               const Matrix& output, Stream stream = {}, LoraIds lora_ids = {});
  /// As apply, dispatched only, for the same num_tokens on each rank; unused ones have ids of -1.
  /// The host decides nothing, so Device::record can record it where Exchange::in_graphs().
  Status apply_even(const ConstMatrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                    const Matrix& output, Stream stream = {});

  /// This rank's experts, for pack, swap and adapters.
  FusedMoe& experts();
  const Plan& plan() const;

 private:
  struct State;
  explicit ParallelMoe(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace MORACLE_API
