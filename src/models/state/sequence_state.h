// The recurrent state of one sequence, all layers together. It has no positions: only the state at
// the end of the sequence and the state before the last step are there.
#pragma once

#include "models/state/kv_pool.h"

namespace moracle {

/// A step reads one copy of the state and writes the other. If the step fails, the first copy is
/// unchanged; if it succeeds, the first copy is the checkpoint from before the step. Sequences may
/// share a copy: a step then writes a fresh one, so that no copy operation is needed.
class SequenceState {
 public:
  SequenceState() = default;
  /// `pool` has one state per page.
  explicit SequenceState(std::shared_ptr<KvPool> pool) : pool_(std::move(pool)) {}
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;
  ~SequenceState() {
    if (pool_) pool_->shrink(copies_, 0);
  }

  /// Takes memory and drops the checkpoint, whose copy the step writes unless it is shared. Errors:
  /// kOutOfMemory; the state is then unchanged.
  Status begin_step();
  /// The step has added tokens to a sequence of `length` tokens.
  void end_step(int64_t length);

  /// What the next step reads; null: zeros.
  std::byte* before() const { return now_ < 0 ? nullptr : copies_[static_cast<size_t>(now_)]; }
  /// What the next step writes, between begin_step and end_step.
  std::byte* after() const {
    return copies_.empty() ? nullptr : copies_[static_cast<size_t>(now_ == 0 ? 1 : 0)];
  }

  /// The state at the end of the sequence, for one more owner (see KvPool::share). Null: zeros.
  std::byte* share();
  /// Begins an empty sequence with a shared state, of which it becomes an owner.
  void restore(std::byte* state);
  /// Begins an empty sequence with memory for a state, which the caller fills. Errors:
  /// kOutOfMemory.
  Result<std::byte*> restore_new();

  /// Goes back from `length` tokens to `to`. Errors: KvCache::truncate's; the state is unchanged.
  Status truncate(int64_t length, int64_t to);

 private:
  std::shared_ptr<KvPool> pool_;  // null: the model has no recurrent layer
  std::vector<std::byte*> copies_;
  int now_ = -1;                        // index of the copy; -1: zeros
  bool is_shared_[2] = {false, false};  // of each copy
  struct Checkpoint {
    int64_t length = -1;  // -1: none
    int now = -1;
  } checkpoint_;
};

}  // namespace moracle
