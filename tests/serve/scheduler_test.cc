// Tests the scheduler's rules one by one, without a model.
#include "serve/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/scheduler/step_budget.h"

namespace moracle::serve::scheduler_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> tokens(int64_t count, int32_t first = 0) {
  std::vector<int32_t> ids(count);
  for (int64_t i = 0; i < count; ++i) ids[i] = first + static_cast<int32_t>(i);
  return ids;
}

Submission submission(SequenceId id, int64_t prompt, int64_t max_tokens = 4) {
  return {.id = id,
          .prompt = tokens(prompt, static_cast<int32_t>(id) * 100'000),
          .max_tokens = max_tokens};
}

// Runs a step. Every sampled token is 7.
std::vector<Adoption> run(Scheduler& scheduler, const StepPlan& plan) {
  std::vector<Adoption> adoptions = scheduler.advance(plan).adoptions;
  for (const Chunk& chunk : plan.chunks) {
    if (chunk.samples) scheduler.append(chunk.id, 7);
  }
  return adoptions;
}

int64_t count_of(const StepPlan& plan, SequenceId id) {
  for (const Chunk& chunk : plan.chunks) {
    if (chunk.id == id) return chunk.count;
  }
  return 0;
}

TEST(Scheduler, ChunksPrefillBesideDecode) {
  Scheduler scheduler({.max_running = 4, .num_pages = 100, .page = 4});
  ASSERT_EQ(scheduler.submit(submission(1, 3, 100)), Admission::kQueued);
  run(scheduler, scheduler.next(0, 16));
  ASSERT_EQ(scheduler.submit(submission(2, 40)), Admission::kQueued);
  std::vector<int64_t> chunks;
  for (int i = 0; i < 3; ++i) {
    const StepPlan plan = scheduler.next(0, 16);
    EXPECT_EQ(count_of(plan, 1), 1);
    EXPECT_LE(plan.num_tokens, 16);
    EXPECT_EQ(plan.chunks.back().samples, i == 2);
    chunks.push_back(count_of(plan, 2));
    run(scheduler, plan);
  }
  EXPECT_THAT(chunks, ElementsAre(15, 15, 10));
}

TEST(Scheduler, DraftsTakeWhatPromptsLeaveOfTheBudget) {
  Scheduler scheduler({.max_running = 4, .num_pages = 100, .page = 4});
  for (const SequenceId id : {1, 2}) scheduler.submit(submission(id, 3, 100));
  run(scheduler, scheduler.next(0, 16));
  scheduler.submit(submission(3, 4));
  scheduler.request_drafts(1, 8);
  scheduler.request_drafts(2, 8);
  const StepPlan plan = scheduler.next(0, 16);
  ASSERT_EQ(plan.chunks.size(), 3u);
  EXPECT_EQ(plan.chunks[0].drafts, 8);
  EXPECT_EQ(plan.chunks[1].drafts, 2);
  EXPECT_EQ(plan.chunks[2].count, 4);
  EXPECT_EQ(plan.num_tokens, 16);
}

TEST(Scheduler, RejectedDraftsReturnTheirPages) {
  Scheduler scheduler({.max_running = 4, .num_pages = 10, .page = 4});
  scheduler.submit(submission(1, 3, 30));
  run(scheduler, scheduler.next(0, 16));
  scheduler.request_drafts(1, 9);
  StepPlan plan = scheduler.next(0, 16);
  ASSERT_EQ(plan.chunks[0].drafts, 9);
  EXPECT_EQ(scheduler.free_pages(), 6);  // 13 positions
  scheduler.advance(plan);
  for (int i = 0; i < 3; ++i) scheduler.append(1, 7);  // two drafts were accepted
  scheduler.settle_drafts(1, 6);
  EXPECT_EQ(scheduler.free_pages(), 8);
  plan = scheduler.next(0, 16);
  EXPECT_EQ(plan.chunks[0].first, 6);
  EXPECT_EQ(plan.chunks[0].count, 1);
  EXPECT_EQ(plan.chunks[0].drafts, 0);
}

TEST(Scheduler, ReplayedTokensRunBesidePromptsAndCountAsDecoding) {
  Scheduler scheduler({.max_running = 4, .num_pages = 20, .page = 4, .prefix_cache = false});
  scheduler.submit(submission(1, 3, 30));
  run(scheduler, scheduler.next(0, 16));
  scheduler.request_drafts(1, 4);
  StepPlan plan = scheduler.next(0, 16);
  scheduler.advance(plan);
  for (int i = 0; i < 3; ++i) scheduler.append(1, 7);
  scheduler.settle_drafts(1, 3);  // the state from before the step
  EXPECT_TRUE(scheduler.decodes(1));
  EXPECT_EQ(scheduler.known_tokens(1), 4);
  scheduler.submit(submission(2, 40));
  plan = scheduler.next(0, 16);
  EXPECT_EQ(count_of(plan, 1), 4);
  EXPECT_EQ(count_of(plan, 2), 12);
  EXPECT_TRUE(plan.chunks[0].samples);
  run(scheduler, plan);
  EXPECT_EQ(scheduler.known_tokens(1), 1);
  // Without space for all of them they run in several steps.
  scheduler.request_drafts(1, 4);
  plan = scheduler.next(0, 16);
  scheduler.advance(plan);
  for (int i = 0; i < 3; ++i) scheduler.append(1, 7);
  scheduler.settle_drafts(1, plan.chunks[0].first);
  plan = scheduler.next(0, 4);
  EXPECT_LE(plan.num_tokens, 4);
  EXPECT_FALSE(plan.chunks[0].samples && plan.chunks[0].id == 1);
}

TEST(Scheduler, DraftsCauseNoPreemption) {
  Scheduler scheduler({.max_running = 4, .num_pages = 3, .page = 4, .prefix_cache = false});
  for (const SequenceId id : {1, 2}) scheduler.submit(submission(id, 3, 6));
  run(scheduler, scheduler.next(0, 16));
  scheduler.request_drafts(1, 5);
  scheduler.request_drafts(2, 5);
  const StepPlan plan = scheduler.next(0, 16);
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_EQ(plan.chunks[0].drafts, 4);  // to the end of a free page
  EXPECT_EQ(plan.chunks[1].drafts, 0);
}

TEST(Scheduler, ShortPromptRunsInNextStepBehindLongPrefill) {
  Scheduler scheduler({.max_running = 4, .num_pages = 1000, .page = 16});
  scheduler.submit(submission(1, 4096));
  run(scheduler, scheduler.next(0, 256));
  scheduler.submit(submission(2, 100));
  const StepPlan plan = scheduler.next(0, 256);
  EXPECT_EQ(count_of(plan, 2), 100);
  EXPECT_EQ(count_of(plan, 1), 156);
}

// Short prompts fill every step, and the long prompt still gets half of the budget.
TEST(Scheduler, LongPrefillProceedsBesideEndlessShortPrompts) {
  Scheduler scheduler({.max_running = 8, .num_pages = 1000, .page = 16, .prefix_cache = false});
  scheduler.submit(submission(1, 1000, 1));
  int steps = 0;
  for (SequenceId id = 2; scheduler.num_running() == 0 || steps < 100; id += 4, ++steps) {
    for (SequenceId i = id; i < id + 4; ++i) scheduler.submit(submission(i, 30, 1));
    const StepPlan plan = scheduler.next(0, 64);
    run(scheduler, plan);
    bool is_done = false;
    for (const Chunk& chunk : plan.chunks) {
      if (!chunk.samples) continue;
      is_done = is_done || chunk.id == 1;
      scheduler.finish(chunk.id);
    }
    if (is_done) break;
  }
  EXPECT_LE(steps, 1000 / 32 + 1);
}

TEST(Scheduler, RejectsWhenQueueIsFullOrCacheIsTooSmall) {
  Scheduler scheduler({.max_running = 1, .max_waiting = 2, .num_pages = 10, .page = 4});
  EXPECT_EQ(scheduler.submit(submission(9, 38, 4)), Admission::kTooLong);
  EXPECT_EQ(scheduler.submit(submission(1, 38, 3)), Admission::kQueued);
  EXPECT_EQ(scheduler.submit(submission(2, 4)), Admission::kQueued);
  EXPECT_EQ(scheduler.submit(submission(3, 4)), Admission::kQueued);
  EXPECT_EQ(scheduler.submit(submission(4, 4)), Admission::kQueueFull);
  scheduler.finish(2);
  EXPECT_EQ(scheduler.submit(submission(4, 4)), Admission::kQueued);
}

TEST(Scheduler, EqualPrefixesWithDifferentSaltsShareNoPages) {
  Scheduler scheduler({.max_running = 8, .num_pages = 100, .page = 4});
  scheduler.submit({.id = 1, .prompt = tokens(10), .max_tokens = 4, .salt = "a"});
  scheduler.submit({.id = 2, .prompt = tokens(10), .max_tokens = 4});
  const auto adopted = run(scheduler, scheduler.next(0, 64));
  ASSERT_EQ(adopted.size(), 4u);
  for (const Adoption& adoption : adopted) EXPECT_TRUE(adoption.is_new);
  for (const char* salt : {"a", "b", ""})
    scheduler.submit(
        {.id = 3 + uint64_t(salt[0]), .prompt = tokens(10), .max_tokens = 4, .salt = salt});
  const StepPlan plan = scheduler.next(0, 64);
  ASSERT_EQ(plan.starts.size(), 3u);
  EXPECT_THAT(plan.starts[0].pages, ElementsAre(adopted[0].page, adopted[1].page));
  EXPECT_THAT(plan.starts[1].pages, IsEmpty());
  EXPECT_THAT(plan.starts[2].pages, ElementsAre(adopted[2].page, adopted[3].page));
}

TEST(Scheduler, EqualPrefixesShareFullPages) {
  Scheduler scheduler({.max_running = 4, .num_pages = 100, .page = 4});
  scheduler.submit({.id = 1, .prompt = tokens(10), .max_tokens = 4});
  const auto adopted = run(scheduler, scheduler.next(0, 64));
  ASSERT_EQ(adopted.size(), 2u);
  EXPECT_EQ(adopted[1].index, 1);
  std::vector<int32_t> longer = tokens(9);
  longer.insert(longer.end(), {50, 51, 52});
  scheduler.submit({.id = 2, .prompt = longer, .max_tokens = 4});
  scheduler.submit({.id = 3, .prompt = longer, .max_tokens = 4, .adapter = 0});
  scheduler.submit({.id = 4, .prompt = longer, .max_tokens = 4, .scores_prompt = true});
  const StepPlan plan = scheduler.next(0, 64);
  ASSERT_EQ(plan.starts.size(), 3u);
  EXPECT_THAT(plan.starts[0].pages, ElementsAre(adopted[0].page, adopted[1].page));
  EXPECT_THAT(plan.starts[1].pages, IsEmpty());
  EXPECT_THAT(plan.starts[2].pages, IsEmpty());
  EXPECT_EQ(count_of(plan, 2), 4);
  EXPECT_EQ(scheduler.num_reused_tokens(), 8);
  // Sequence 4 computed pages that are already cached: it uses those, and frees its own.
  std::vector<bool> is_new;
  for (const Adoption& adoption : run(scheduler, plan)) {
    if (adoption.id == 4) is_new.push_back(adoption.is_new);
  }
  EXPECT_THAT(is_new, ElementsAre(false, false, false));
}

TEST(Scheduler, FullyCachedPromptRecomputesItsLastPage) {
  Scheduler scheduler({.max_running = 4, .num_pages = 100, .page = 4});
  scheduler.submit({.id = 1, .prompt = tokens(8)});
  run(scheduler, scheduler.next(0, 64));
  scheduler.finish(1);
  scheduler.submit({.id = 2, .prompt = tokens(8)});
  const StepPlan plan = scheduler.next(0, 64);
  EXPECT_EQ(plan.starts.at(0).pages.size(), 1u);
  EXPECT_EQ(plan.chunks.at(0).first, 4);
  EXPECT_TRUE(plan.chunks.at(0).samples);
}

TEST(Scheduler, ChoicesOfOneRequestWaitForSharedPrefill) {
  Scheduler scheduler({.max_running = 4, .num_pages = 100, .page = 4});
  scheduler.submit({.id = 1, .prompt = tokens(20), .max_tokens = 2});
  scheduler.submit({.id = 2, .prompt = tokens(20), .max_tokens = 2, .after = 1});
  EXPECT_EQ(scheduler.num_waiting(), 2);
  run(scheduler, scheduler.next(0, 16));
  const StepPlan rest = scheduler.next(0, 16);
  EXPECT_THAT(rest.starts, IsEmpty());
  run(scheduler, rest);
  const StepPlan plan = scheduler.next(0, 16);
  ASSERT_EQ(plan.starts.size(), 1u);
  EXPECT_EQ(plan.starts[0].pages.size(), 4u);
}

TEST(Scheduler, PreemptsAndRecomputesYoungestSequence) {
  Scheduler scheduler({.max_running = 4, .num_pages = 6, .page = 4, .prefix_cache = false});
  scheduler.submit(submission(1, 8, 9));
  scheduler.submit(submission(2, 8, 9));
  StepPlan plan = scheduler.next(0, 64);
  EXPECT_EQ(plan.starts.size(), 2u);
  int steps = 0;
  for (; plan.preempted.empty(); plan = scheduler.next(0, 64), ++steps) {
    ASSERT_LT(steps, 9);
    run(scheduler, plan);
  }
  EXPECT_THAT(plan.preempted, ElementsAre(2));
  EXPECT_EQ(scheduler.num_preemptions(), 1);
  EXPECT_EQ(count_of(plan, 1), 1);
  run(scheduler, plan);
  scheduler.finish(1);
  plan = scheduler.next(0, 64);
  ASSERT_EQ(plan.starts.size(), 1u);
  EXPECT_EQ(plan.starts[0].id, 2u);
  EXPECT_EQ(count_of(plan, 2), 8 + steps) << "the prompt and every new token";
}

TEST(Scheduler, EvictsLeastRecentlyUsedPagesFirst) {
  Scheduler scheduler({.max_running = 1, .num_pages = 4, .page = 4});
  std::vector<PageId> pages;
  for (const SequenceId id : {1, 2}) {
    scheduler.submit(submission(id, 8, 1));
    for (const Adoption& adoption : run(scheduler, scheduler.next(0, 64)))
      pages.push_back(adoption.page);
    scheduler.finish(id);
  }
  ASSERT_EQ(pages.size(), 4u);
  scheduler.submit(submission(3, 9, 1));
  // The last page of the oldest sequence is evicted first.
  using Kind = CacheMove::Kind;
  EXPECT_THAT(scheduler.next(0, 64).moves,
              ElementsAre(CacheMove{Kind::kDrop, pages[1]}, CacheMove{Kind::kDrop, pages[0]},
                          CacheMove{Kind::kDrop, pages[3]}));
}

TEST(Scheduler, DeadlinesEndWaitingAndRunningSequences) {
  Scheduler scheduler({.max_running = 1, .num_pages = 100, .page = 4});
  for (const SequenceId id : {1, 2, 3}) {
    Submission timed = submission(id, 4, 100);
    if (id < 3) timed.deadline = 5;
    scheduler.submit(std::move(timed));
  }
  run(scheduler, scheduler.next(4.9, 64));
  const StepPlan plan = scheduler.next(5, 64);
  EXPECT_THAT(plan.expired, ::testing::UnorderedElementsAre(1, 2));
  EXPECT_EQ(count_of(plan, 3), 4);
}

TEST(Scheduler, PauseFinishesStartedSequencesOnly) {
  Scheduler scheduler({.max_running = 2, .num_pages = 100, .page = 4});
  scheduler.submit(submission(1, 4));
  run(scheduler, scheduler.next(0, 64));
  scheduler.pause(true);
  scheduler.submit(submission(2, 4));
  EXPECT_EQ(count_of(scheduler.next(0, 64), 2), 0);
  EXPECT_FALSE(scheduler.is_idle());
  scheduler.finish(1);
  EXPECT_TRUE(scheduler.is_idle());
  EXPECT_EQ(scheduler.drop_cached().size(), 1u);
  scheduler.pause(false);
  EXPECT_EQ(count_of(scheduler.next(0, 64), 2), 4);
}

TEST(StepBudget, FollowsMeasuredStepTime) {
  StepBudget budget(512, 0.1);
  EXPECT_EQ(budget.tokens(), 512);
  budget.measured(8, 1);  // too few tokens to count
  EXPECT_EQ(budget.tokens(), 512);
  for (int i = 0; i < 20; ++i) budget.measured(256, 0.256);
  EXPECT_EQ(budget.tokens(), 96);
  for (int i = 0; i < 20; ++i) budget.measured(64, 6.4);
  EXPECT_EQ(budget.tokens(), 32);
  for (int i = 0; i < 50; ++i) budget.measured(64, 0.001);
  EXPECT_EQ(budget.tokens(), 512);
}

}  // namespace
}  // namespace moracle::serve::scheduler_test
