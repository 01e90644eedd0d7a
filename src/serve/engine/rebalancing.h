// Expert rebalancing: moves experts between ranks as their load changes. Rank 0 counts, decides and
// sends orders. One layer moves between two steps.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "moracle/routing.h"
#include "serve/engine/metrics.h"
#include "serve/engine/ranks/leader.h"

namespace moracle::serve {

struct RebalanceOptions {
  int64_t interval = 0;  ///< steps between two decisions; 0: off
  int64_t num_redundant_experts = 0;
  std::string folder;  ///< checkpoint folder
  /// Called on the engine's thread with one log line per moved layer.
  std::function<void(const std::string&)> log{};
};

/// Result of a rebalance. Imbalance: largest rank load over mean rank load, summed over the layers,
/// for the tokens since the last decision; 0 without tokens.
struct RebalanceReport {
  int64_t layers = 0, experts = 0;  ///< number moved
  double before = 0, after = 0;
};

class Rebalancing {
 public:
  using Done = std::function<void(const Result<RebalanceReport>&)>;

  Rebalancing(Model& model, Leader& leader, Metrics& metrics, RebalanceOptions options)
      : model_(model), leader_(leader), metrics_(metrics), options_(std::move(options)) {}
  /// Errors: the model does not count routing, is not split over ranks, or has adapters; more
  /// expert copies than ranks can hold.
  Status check() const;
  bool is_on() const { return options_.interval > 0; }

  /// Counts a step, and decides at the interval.
  void step_done();
  /// Decides now, or joins the running rebalance. `done` is called at its end.
  void request(Done done);
  /// True while layers are left to move.
  bool is_running() const { return !moves_.empty(); }
  /// Moves the next layer. Collective: all ranks run it between the same two steps.
  void move_next();
  /// Resets the counts after a change of weights.
  void model_changed();
  /// Ends a running rebalance when the engine stops.
  void end(const Error& reason);

 private:
  struct Move {
    int64_t layer = 0;
    std::vector<ExpertMap> ranks;
  };
  using Loads = std::map<int64_t, std::vector<int64_t>>;

  Status decide();
  Result<Loads> loads_since_last();
  void finish(const Result<RebalanceReport>& result);
  void log(const Move& move, std::span<const ExpertMap> old, std::span<const int64_t> tokens);

  Model& model_;
  Leader& leader_;
  Metrics& metrics_;
  const RebalanceOptions options_;
  int64_t steps_ = 0;
  Loads counted_;  // counts at the last decision
  Loads loads_;    // loads that the running rebalance uses
  std::map<int64_t, std::vector<ExpertMap>> placed_;
  std::deque<Move> moves_;
  RebalanceReport report_;
  std::vector<Done> waiting_;
};

}  // namespace moracle::serve
