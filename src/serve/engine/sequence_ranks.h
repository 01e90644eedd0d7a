// Dispatched ranks that serve together: each sequence has a home, the rank that computes its
// attention and holds its cache. All ranks derive the homes from the same orders.
#pragma once

#include <unordered_map>
#include <vector>

#include "serve/engine/page_store.h"

namespace moracle::serve {

/// True if every rank of the model has sequences of its own (Spread::kDispatched).
bool spreads_sequences(Model& model);

class SequenceRanks {
 public:
  /// `model` has a group.
  explicit SequenceRanks(Model& model);

  /// Gives the sequence to the rank with the fewest, the first of several. A known id keeps its
  /// home. True: this rank is the home.
  bool start(SequenceId id);
  void drop(SequenceId id);
  /// The steps of this rank. Also notes which rank computes each row, for collect().
  std::vector<SequenceStep> own(std::span<const SequenceStep> steps);
  /// All ranks call it after the step: on rank 0 `to` gets the logits [count, vocab_size] of rows
  /// [first, first + count), counted over the steps of all ranks in their order. Errors: rows that
  /// the step did not have; those of Model::logits and of the group.
  Status collect(int64_t first, int64_t count, std::vector<float>& to);

 private:
  struct Row {
    int64_t rank, row;  // on that rank
  };

  Model& model_;
  Group& group_;
  std::unordered_map<SequenceId, int64_t> owners_;
  std::vector<int64_t> num_sequences_;  // of each rank
  std::vector<Row> rows_;
};

}  // namespace moracle::serve
