// One command on several ranks, started by mpirun, srun or torchrun.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "command.h"

namespace moracle::cli {

/// Options of verbs that run on several ranks.
struct RankArguments {
  std::string parallel;  // "ep=4", "ep=4,mode=dispatched"
  std::string placement = "linear", transport = "auto", exchange = "auto";
  int64_t redundant_experts = 0;
  bool moves_experts = false;  // the verb rebalances: copies need no statistics file
  double timeout = 120;

  void add_to(CLI::App& app);
  bool given() const { return !parallel.empty(); }
  /// Sets the plan of rank 0, for verbs that read no weights. Errors: invalid text of --parallel.
  Result<Parallelism> planned() const;
  /// Sets the mode, the tensor parallelism and the exchange. Errors: as above.
  Status set_spread(ModelOptions& options) const;
  /// True if the placement is a file of routing statistics.
  bool by_load() const;
  /// Reads that file; null without one, or without --parallel. Errors: neither a placement's name
  /// nor a file; invalid content.
  Result<std::shared_ptr<const RoutingStatistics>> measured_load(bool has_slots = false) const;
  /// Connects to the other ranks if the command line or the launcher has several. Sets the options
  /// of this rank: experts, threads, and the GPU where `device` names none ("cuda"). From then on
  /// only rank 0 prints, and fail() notifies the others. Errors: a launcher that started another
  /// number of ranks; no launcher; those of open_group.
  Status join(ModelOptions& options, std::string_view device) const;
};

/// Broadcasts `ids` of rank `from`. Waits without a timeout, because rank 0 may wait for input.
Status share_ids(const std::shared_ptr<Group>& group, std::vector<int32_t>& ids, int64_t from = 0);
/// True for rank 0 and for a single process.
bool is_first_rank();
/// Sends this rank's error to the others.
void tell_ranks(const Error& error);
/// Leaves the group at the end of the process.
void leave_ranks(int exit_code);
/// "rank 2: " for messages; empty for a single process.
std::string rank_prefix();
/// stderr, even on ranks that print nothing else.
std::ostream& errors();

}  // namespace moracle::cli
