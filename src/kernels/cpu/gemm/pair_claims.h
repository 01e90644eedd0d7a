// Which thread multiplies the rows of an expert by a pair of panels, where threads help each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace moracle::cpu {

/// The progress of each pair of panels through the experts of one job. A thread claims a pair for
/// one expert, and releases it for the next one. So one thread at a time adds to the columns of a
/// pair, in the order of the experts, whichever threads they are.
///
/// A thread that released a pair claims it again for the next expert. It leaves the pair only if
/// another thread has claimed it by then. So no expert of a pair is left out.
class PairClaims {
 public:
  explicit PairClaims(int64_t pairs) : progress_(pairs) {}

  void start(int64_t expert) {
    for (Progress& p : progress_) p.state.store(free(expert), std::memory_order_relaxed);
  }
  /// False if another thread multiplies this pair, or has gone past this expert.
  bool claim(int64_t pair, int64_t expert) {
    int64_t state = free(expert);
    return progress_[pair].state.compare_exchange_strong(state, state + 1,
                                                         std::memory_order_acquire);
  }
  void release(int64_t pair, int64_t next_expert) {
    progress_[pair].state.store(free(next_expert), std::memory_order_release);
  }

  struct Unclaimed {
    int64_t pair = -1, expert = 0;
  };
  /// A pair that no thread multiplies now, and that is furthest behind among them; pair -1: none
  /// has an expert before `past`.
  Unclaimed furthest_behind(int64_t past) const {
    Unclaimed found{-1, past};
    for (int64_t i = 0; i < static_cast<int64_t>(progress_.size()); ++i) {
      const int64_t state = progress_[i].state.load(std::memory_order_relaxed);
      if (state % 2 == 0 && state / 2 < past && state / 2 <= found.expert) found = {i, state / 2};
    }
    return found;
  }

 private:
  // 2 · the next expert, or 2 · the present expert + 1 while a thread multiplies its rows.
  struct alignas(64) Progress {
    std::atomic<int64_t> state{0};
  };
  static int64_t free(int64_t expert) { return 2 * expert; }

  std::vector<Progress> progress_;
};

}  // namespace moracle::cpu
