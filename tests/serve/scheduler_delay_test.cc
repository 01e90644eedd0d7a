// Measures the time to first token of a short request behind a long prompt, on a fake clock: a step
// takes a fixed time and a time per token.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "serve/scheduler/scheduler.h"

namespace moracle::serve::scheduler_delay_test {
namespace {

constexpr int64_t kBudget = 512;

class FakeModel {
 public:
  /// `decoding` endless sequences are decoding.
  explicit FakeModel(int64_t decoding)
      : decoding_(static_cast<SequenceId>(decoding)),
        scheduler_({.max_running = 64, .num_pages = 1 << 16, .page = 16, .prefix_cache = false}) {
    for (int64_t i = 0; i < decoding; ++i) submit(8, 10'000);
    while (drawn_.size() < decoding_) step();
  }
  SequenceId submit(int64_t prompt, int64_t max_tokens = 1) {
    EXPECT_EQ(scheduler_.submit({.id = ++last_id_,
                                 .prompt = std::vector<int32_t>(prompt, 1),
                                 .max_tokens = max_tokens}),
              Admission::kQueued);
    return last_id_;
  }
  void step() {
    const StepPlan plan = scheduler_.next(now_, kBudget);
    now_ += time_of(plan.num_tokens);
    scheduler_.advance(plan);
    for (const Chunk& chunk : plan.chunks) {
      if (!chunk.samples) continue;
      drawn_.emplace(chunk.id, now_);
      if (chunk.id <= decoding_)
        scheduler_.append(chunk.id, 1);
      else
        scheduler_.finish(chunk.id);
    }
  }
  static double time_of(int64_t tokens) { return 0.020 + 0.002 * static_cast<double>(tokens); }
  static double time_of_chunk() { return time_of(kBudget); }
  double now() const { return now_; }
  bool has_first_token(SequenceId id) const { return drawn_.contains(id); }
  double first_token(SequenceId id) const { return drawn_.at(id); }

 private:
  const SequenceId decoding_;
  Scheduler scheduler_;
  double now_ = 0;
  SequenceId last_id_ = 0;
  std::map<SequenceId, double> drawn_;  // time to first token
};

// The scheduler sees a request at the end of the current step. Worst case: it arrives right after
// the step's begin.
TEST(SchedulerDelay, FirstTokenBehindLongPrefillTakesAtMostTwoChunks) {
  for (const int64_t decoding : {0, 1, 60}) {
    for (int64_t steps_before = 0; steps_before < 9; ++steps_before) {
      FakeModel model(decoding);
      const SequenceId long_one = model.submit(4096);
      for (int64_t i = 0; i < steps_before; ++i) model.step();
      const double arrival = model.now();
      if (!model.has_first_token(long_one)) model.step();
      const SequenceId short_one = model.submit(64);
      while (!model.has_first_token(short_one)) model.step();
      EXPECT_LE(model.first_token(short_one) - arrival, 2 * FakeModel::time_of_chunk() + 1e-9)
          << decoding << " sequences decode, " << steps_before << " chunks came before";
      while (!model.has_first_token(long_one)) model.step();
    }
  }
}

TEST(SchedulerDelay, LongPrefillBesideShortRequestsTakesAtMostTwiceItsTime) {
  FakeModel alone(0);
  const SequenceId one = alone.submit(4096);
  while (!alone.has_first_token(one)) alone.step();
  FakeModel busy(0);
  const SequenceId other = busy.submit(4096);
  while (!busy.has_first_token(other)) {
    busy.submit(64);
    busy.step();
  }
  EXPECT_LE(busy.first_token(other), 2 * alone.first_token(one) + FakeModel::time_of_chunk());
}

}  // namespace
}  // namespace moracle::serve::scheduler_delay_test
