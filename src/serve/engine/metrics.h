// Server metrics in Prometheus' text format.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "moracle/model.h"
#include "moracle/placement.h"
#include "serve/engine/step_profiler.h"

namespace moracle::serve {

class Histogram {
 public:
  /// `bounds`: upper bounds of the buckets, ascending.
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void add(double value);
  void write(const std::string& name, const char* help, std::string& out) const;

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

/// Totals of traffic with host memory (--cache-ram), and of restored states.
struct CacheTraffic {
  int64_t ram_hits = 0, bytes_back = 0, bytes_saved = 0;  ///< hits: pages and states
  int64_t states_restored = 0;
  int64_t errors = 0;  ///< after which the prefix cache was emptied
};

/// State of the scheduler after a step.
struct Gauges {
  int64_t running = 0, waiting = 0;
  int64_t pages = 0, pages_in_use = 0, pages_cached = 0;  ///< cached: no running sequence uses them
  int64_t preemptions = 0, reused_tokens = 0;             ///< totals
  int64_t step_budget = 0;                                ///< token limit of a step
  int64_t states = 0, most_states = 0;        ///< of recurrent layers, in the prefix cache
  int64_t ram_bytes = 0, most_ram_bytes = 0;  ///< of host memory for pages and states
  CacheTraffic traffic = {};
  PlacementCounts placed = {};  ///< totals of experts in slots
};

/// Thread-safe.
class Metrics {
 public:
  void set(const Gauges& gauges);
  Gauges gauges() const;
  void step(int64_t prompt_tokens, int64_t new_tokens, double seconds);
  /// Drafts of a step, and the time that they saved; negative: that they cost.
  void drafts(int64_t drafted, int64_t accepted, double saved_seconds);
  void parts(const PartSeconds& seconds);
  void first_token(double seconds);
  void next_token(double seconds);
  /// `outcome`: "stop", "length", "cancelled", …
  void request_ended(const char* outcome, double seconds);
  void reload_ended(bool done);
  /// Load imbalance of the ranks: largest load of each layer over the mean.
  void expert_load(double imbalance);
  void rebalance_ended(bool done, int64_t layers, int64_t experts);
  /// All metrics; their names begin with "moracle_".
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  Gauges gauges_;
  SpeculationCounts speculation_;
  int64_t prompt_tokens_ = 0, new_tokens_ = 0, reloads_ = 0, failed_reloads_ = 0;
  std::optional<double> imbalance_;  // empty: not measured
  int64_t rebalances_ = 0, failed_rebalances_ = 0, moved_layers_ = 0, moved_experts_ = 0;
  std::map<std::string, int64_t> requests_;  // by outcome
  PartSeconds parts_;
  Histogram first_token_{{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}};
  Histogram next_token_{{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5}};
  Histogram request_{{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}};
  Histogram step_{{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5}};
};

}  // namespace moracle::serve
