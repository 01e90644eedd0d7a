// Data-parallel attention (mode=dispatched): each sequence belongs to one rank, which computes its
// attention and holds its KV cache. All ranks derive the owners from the same orders.
#pragma once

#include <unordered_map>
#include <vector>

#include "serve/engine/page_store.h"

namespace moracle::serve {

/// True if each rank serves its own sequences (Spread::kDispatched).
bool spreads_sequences(Model& model);

class SequenceRanks {
 public:
  /// `model` must have a group.
  explicit SequenceRanks(Model& model);

  /// Assigns the sequence to the rank with the fewest sequences, the lowest of several. A known id
  /// keeps its owner. True: this rank is the owner.
  bool start(SequenceId id);
  void drop(SequenceId id);
  /// Returns the steps of this rank's sequences. Records which rank computes each row, for
  /// collect().
  std::vector<SequenceStep> own(std::span<const SequenceStep> steps);
  /// Gathers logits on rank 0, a collective call after the step: `to` gets [count, vocab_size] of
  /// rows [first, first + count), counted over the steps of all ranks in order. Errors: rows
  /// outside of the step; errors of Model::logits and of the group.
  Status collect(int64_t first, int64_t count, std::vector<float>& to);

 private:
  struct Row {
    int64_t rank, row;  // row on that rank
  };

  Model& model_;
  Group& group_;
  std::unordered_map<SequenceId, int64_t> owners_;
  std::vector<int64_t> num_sequences_;  // per rank
  std::vector<Row> rows_;
};

}  // namespace moracle::serve
