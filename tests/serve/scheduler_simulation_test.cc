// Property test: random traffic with a fake clock and a fake model, with invariants checked after
// every step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "serve/scheduler/scheduler.h"

namespace moracle::serve::scheduler_simulation_test {
namespace {

// The next token hashes all earlier ones, so a wrong page or a lost token changes the rest.
int32_t next_token(const std::vector<int32_t>& tokens) {
  uint64_t hash = 1469598103934665603u;
  for (const int32_t token : tokens) hash = (hash ^ static_cast<uint32_t>(token)) * 1099511628211u;
  return static_cast<int32_t>(hash >> 40 & 3);  // few values: equal prefixes are frequent
}

struct Client {
  Submission submission;
  std::vector<int32_t> tokens;
  int64_t wanted = 0;
  int64_t submitted_at = 0;
  std::vector<std::vector<int32_t>> pages;  // page contents, as in the engine
};

// Prefix cache scope of a client.
using Scope = std::pair<int32_t, std::string>;

Scope scope_of(const Client& client) {
  return {client.submission.adapter, client.submission.salt};
}

class Simulation {
 public:
  Simulation(uint32_t seed, const SchedulerLimits& limits, int64_t budget)
      : random_(seed), limits_(limits), budget_(budget), scheduler_(limits) {}

  void run(int steps) {
    for (int step = 0; step < steps || !clients_.empty(); ++step) {
      ASSERT_LT(step, steps * 20) << clients_.size() << " sequences never end";
      step_ = step;
      if (step < steps) arrive();
      if (chance(20) && !clients_.empty()) cancel();
      compute();
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(scheduler_.num_waiting() + scheduler_.num_running(), 0);
    EXPECT_EQ(scheduler_.own_pages(), 0);
    EXPECT_EQ(scheduler_.prefixes().num_unused(), scheduler_.prefixes().num_pages());
    scheduler_.drop_cached();
    EXPECT_EQ(scheduler_.free_pages(), limits_.num_pages);
  }
  int completed() const { return completed_; }
  int64_t preemptions() const { return scheduler_.num_preemptions(); }
  int64_t reused() const { return scheduler_.num_reused_tokens(); }
  int64_t slowest() const { return slowest_; }

 private:
  bool chance(int one_in) { return random_() % one_in == 0; }
  int64_t below(int64_t most) { return static_cast<int64_t>(random_() % most); }

  void arrive() {
    for (int i = 0; i < 3 && chance(3); ++i) {
      Client client;
      Submission& submission = client.submission;
      submission.id = ++last_id_;
      submission.prompt.resize(1 + below(chance(8) ? 3 * limits_.page * 4 : 20));
      for (int32_t& token : submission.prompt) token = static_cast<int32_t>(below(2));
      submission.max_tokens = client.wanted = 1 + below(30);
      submission.adapter = chance(4) ? 0 : -1;
      if (chance(4)) submission.salt = "a";
      submission.scores_prompt = chance(6);
      if (chance(10)) submission.deadline = static_cast<double>(step_ + below(50));
      if (chance(6) && submission.id > 1) submission.after = submission.id - 1;
      client.tokens = submission.prompt;
      client.submitted_at = step_;
      const SequenceId id = submission.id;
      const auto before = scheduler_.num_waiting() + scheduler_.num_running();
      const Admission admission = scheduler_.submit(submission);
      if (admission == Admission::kQueued) {
        clients_[id] = std::move(client);
      } else if (admission == Admission::kQueueFull) {
        EXPECT_EQ(before, limits_.max_waiting + limits_.max_running);
      }
    }
  }

  void cancel() {
    auto at = clients_.begin();
    std::advance(at, below(static_cast<int64_t>(clients_.size())));
    scheduler_.finish(at->first);
    clients_.erase(at);
  }

  std::vector<int32_t> page_content(const Client& client, int64_t index, int64_t computed) const {
    const int64_t first = index * limits_.page,
                  last = std::min((index + 1) * limits_.page, computed);
    return {client.tokens.begin() + first, client.tokens.begin() + last};
  }

  void apply(const StepPlan& plan) {
    for (const SequenceId id : plan.expired) {
      ASSERT_TRUE(clients_.contains(id));
      EXPECT_LE(clients_[id].submission.deadline, step_);
      clients_.erase(id);
    }
    for (const SequenceId id : plan.preempted) clients_.at(id).pages.clear();
    for (const PageId page : plan.dropped) ASSERT_EQ(cached_.erase(page), 1u);
    for (const StepPlan::Start& start : plan.starts) {
      Client& client = clients_.at(start.id);
      ASSERT_TRUE(client.pages.empty());
      for (const PageId page : start.pages) {
        ASSERT_TRUE(cached_.contains(page));
        ASSERT_EQ(cached_[page].first, scope_of(client)) << "a page of another adapter or salt";
        client.pages.push_back(cached_[page].second);
      }
    }
  }

  void compute() {
    const StepPlan plan = scheduler_.next(static_cast<double>(step_), budget_);
    apply(plan);
    if (::testing::Test::HasFatalFailure()) return;
    ASSERT_LE(plan.num_tokens, budget_);
    if (scheduler_.num_waiting() + scheduler_.num_running() > 0) {
      ASSERT_FALSE(plan.chunks.empty()) << "nothing proceeds";
    }
    std::set<SequenceId> in_step;
    int64_t total = 0;
    for (const Chunk& chunk : plan.chunks) {
      ASSERT_TRUE(in_step.insert(chunk.id).second) << "twice in one step";
      ASSERT_GE(chunk.count, 1);
      total += chunk.count;
      write(clients_.at(chunk.id), chunk);
      if (::testing::Test::HasFatalFailure()) return;
    }
    ASSERT_EQ(total, plan.num_tokens);
    for (const Adoption& adoption : scheduler_.advance(plan)) adopt(adoption);
    check_pages();
    for (const Chunk& chunk : plan.chunks) {
      if (chunk.samples) draw(chunk.id);
    }
  }

  // Writes a chunk's tokens into the sequence's pages.
  void write(Client& client, const Chunk& chunk) {
    int64_t length = 0;
    for (const auto& page : client.pages) length += static_cast<int64_t>(page.size());
    ASSERT_EQ(chunk.first, length) << "the chunk does not follow the cache";
    const int64_t computed = chunk.first + chunk.count;
    ASSERT_LE(computed, static_cast<int64_t>(client.tokens.size()));
    EXPECT_EQ(chunk.samples, computed == static_cast<int64_t>(client.tokens.size()));
    client.pages.resize((computed + limits_.page - 1) / limits_.page);
    for (auto index = chunk.first / limits_.page; index * limits_.page < computed; ++index)
      client.pages[index] = page_content(client, index, computed);
  }

  void adopt(const Adoption& adoption) {
    Client& client = clients_.at(adoption.id);
    const std::vector<int32_t>& own = client.pages.at(adoption.index);
    ASSERT_EQ(static_cast<int64_t>(own.size()), limits_.page);
    EXPECT_EQ(adoption.is_new, !cached_.contains(adoption.page));
    if (adoption.is_new) cached_[adoption.page] = {scope_of(client), own};
    client.pages[adoption.index] = cached_[adoption.page].second;
  }

  void check_pages() {
    ASSERT_GE(scheduler_.free_pages(), 0);
    EXPECT_EQ(scheduler_.prefixes().num_pages(), static_cast<int64_t>(cached_.size()));
    EXPECT_EQ(scheduler_.free_pages() + scheduler_.own_pages() + scheduler_.prefixes().num_pages(),
              limits_.num_pages);
    EXPECT_LE(scheduler_.num_running(), limits_.max_running);
    EXPECT_EQ(scheduler_.num_waiting() + scheduler_.num_running(),
              static_cast<int64_t>(clients_.size()))
        << "a sequence is lost";
  }

  // The fake model reads the pages, not the client's tokens.
  void draw(SequenceId id) {
    Client& client = clients_.at(id);
    std::vector<int32_t> read;
    for (const auto& page : client.pages) read.insert(read.end(), page.begin(), page.end());
    ASSERT_EQ(read, client.tokens);
    client.tokens.push_back(next_token(read));
    scheduler_.append(id, client.tokens.back());
    const auto made = static_cast<int64_t>(client.tokens.size() - client.submission.prompt.size());
    if (made < client.wanted) return;
    slowest_ = std::max(slowest_, step_ - client.submitted_at);
    scheduler_.finish(id);
    clients_.erase(id);
    ++completed_;
  }

  std::mt19937 random_;
  const SchedulerLimits limits_;
  const int64_t budget_;
  Scheduler scheduler_;
  std::map<SequenceId, Client> clients_;
  std::map<PageId, std::pair<Scope, std::vector<int32_t>>> cached_;  // with their tokens
  SequenceId last_id_ = 0;
  int64_t step_ = 0, slowest_ = 0;
  int completed_ = 0;
};

TEST(SchedulerSimulation, RandomTrafficLosesNoTokensAndLeaksNoPages) {
  int completed = 0;
  int64_t preemptions = 0, reused = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    const SchedulerLimits limits{.max_running = 1 + seed % 8,
                                 .max_waiting = seed % 3 == 0 ? 4 : 30,
                                 .num_pages = 24 + seed % 40,
                                 .page = 1 + seed % 5,
                                 .prefix_cache = seed % 4 != 0};
    Simulation simulation(seed, limits, 8 + seed % 30);
    simulation.run(400);
    if (HasFatalFailure()) return;
    completed += simulation.completed();
    preemptions += simulation.preemptions();
    reused += simulation.reused();
  }
  EXPECT_GT(completed, 5'000);
  EXPECT_GT(preemptions, 500);
  EXPECT_GT(reused, 5'000);
}

TEST(SchedulerSimulation, NeverPreemptsWithEnoughPages) {
  Simulation simulation(1, {.max_running = 8, .max_waiting = 100, .num_pages = 10'000, .page = 4},
                        64);
  simulation.run(1'000);
  EXPECT_EQ(simulation.preemptions(), 0);
  EXPECT_LT(simulation.slowest(), 100);
}

}  // namespace
}  // namespace moracle::serve::scheduler_simulation_test
