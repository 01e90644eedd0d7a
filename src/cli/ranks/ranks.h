// Several processes that run one command together, started by mpirun, srun or torchrun.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "command.h"

namespace moracle::cli {

/// Options of the verbs that several ranks can run.
struct RankArguments {
  std::string parallel;  // "ep=4", "ep=4,mode=dispatched"
  std::string placement = "linear", transport = "auto", exchange = "auto";
  int64_t redundant_experts = 0;
  bool moves_experts = false;  // while it runs: copies need no file of statistics
  double timeout = 120;

  void add_to(CLI::App& app);
  bool given() const { return !parallel.empty(); }
  /// The plan of rank 0, for verbs that read no weights. Errors: a text that ParallelText refuses.
  Result<Parallelism> planned() const;
  /// Sets how tokens and dense layers are spread, and by which exchange. Errors: likewise.
  Status set_spread(ModelOptions& options) const;
  /// True if the placement is a file of routing statistics.
  bool by_load() const;
  /// That file; null without one, or without --parallel. Errors: a name that is no placement and no
  /// file; other content.
  Result<std::shared_ptr<const RoutingStatistics>> measured_load() const;
  /// Connects with the other ranks, if the command line or the launcher says that there are some.
  /// Sets what depends on the rank: experts, threads, the GPU where `device` names none ("cuda").
  /// From then on only rank 0 prints, and fail() tells the others. Errors: a launcher that started
  /// another number of ranks; no launcher; those of open_group.
  Status join(ModelOptions& options, std::string_view device) const;
};

/// The `ids` of rank `from` on every rank. Waits without a limit of time, because rank 0 may wait
/// for input.
Status share_ids(const std::shared_ptr<Group>& group, std::vector<int32_t>& ids, int64_t from = 0);
/// True for rank 0 and for a process alone.
bool is_first_rank();
/// Tells the other ranks why this one stops.
void tell_ranks(const Error& error);
/// Leaves the job, at the end of the process.
void leave_ranks(int exit_code);
/// "rank 2: " in messages; empty for a process alone.
std::string rank_prefix();
/// stderr, also of ranks that are silent otherwise.
std::ostream& errors();

}  // namespace moracle::cli
