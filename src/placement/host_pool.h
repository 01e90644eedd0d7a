// Experts of one layer in a bounded part of host memory, of which mapped files have all.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "moe/moe_access.h"
#include "placement/slots.h"

namespace moracle {

class HostPool {
 public:
  /// `weights` of all experts. `fixed`: the first half of the memory keeps the first experts; an
  /// expert's place in the other half depends on the call alone, and so does the order of its sum.
  HostPool(DescribedWeights&& weights, int64_t num_slots, bool fixed)
      : weights_(std::move(weights)),
        table_(weights_.spec.num_experts, num_slots),
        used_(static_cast<size_t>(num_slots)),
        fixed_(fixed ? num_slots / 2 : 0),
        by_call_(fixed) {}

  /// The local number of an expert in memory; -1: only files have it.
  int64_t slot_of(int64_t expert) const { return table_.ready_slot(expert); }
  /// Fills the memory with the first experts. Errors: reading; kCancelled.
  Status fill(FusedMoe& pool, const Progress& progress);
  /// The experts of a call, ascending and each once, in shares that the memory holds at once.
  std::vector<std::vector<int32_t>> shares(std::span<const int32_t> experts) const;
  /// Reads those of a share that memory lacks. Nothing else may use the pool's memory. Errors:
  /// reading; the memory then holds the others.
  Status hold(FusedMoe& pool, std::span<const int32_t> share);
  /// Other weights: memory then holds none.
  void replace(DescribedWeights&& weights);

  int64_t reads() const { return reads_; }

 private:
  // The slot for an expert that memory lacks: one that no expert of the share has.
  int64_t free_slot(std::span<const int32_t> share, int64_t missing) const;

  DescribedWeights weights_;
  ExpertSlots table_;
  std::vector<uint64_t> used_;  // by slot: the last share that had its expert
  uint64_t now_ = 0;
  int64_t fixed_;
  bool by_call_;
  int64_t reads_ = 0;
};

}  // namespace moracle
