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

// Prefix cache scope of a client.
using Scope = std::pair<int32_t, std::string>;

struct Client {
  Submission submission;
  std::vector<int32_t> tokens;
  int64_t wanted = 0;
  int64_t submitted_at = 0;
  std::vector<std::vector<int32_t>> pages;  // page contents, as in the engine
  std::vector<int32_t> state;               // of recurrent layers: the tokens that they saw
};

// A cached page and the state at its end.
struct Cached {
  Scope scope;
  std::vector<int32_t> tokens;
  bool is_in_ram = false;
};
struct State {
  std::vector<int32_t> tokens;
  bool is_in_ram = false;
};

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
    for (const CacheMove& move : scheduler_.drop_cached()) apply(move);
    EXPECT_EQ(scheduler_.free_pages(), limits_.num_pages);
    EXPECT_EQ(scheduler_.prefixes().ram_slots_in_use(), 0);
    EXPECT_EQ(scheduler_.prefixes().num_states(), 0);
    EXPECT_TRUE(cached_.empty());
    EXPECT_TRUE(states_.empty());
  }
  int completed() const { return completed_; }
  int64_t preemptions() const { return scheduler_.num_preemptions(); }
  int64_t reused() const { return scheduler_.num_reused_tokens(); }
  int64_t slowest() const { return slowest_; }
  int64_t moves_back() const { return moves_back_; }
  int64_t states_restored() const { return states_restored_; }

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
    for (const SequenceId id : plan.preempted) {
      clients_.at(id).pages.clear();
      clients_.at(id).state.clear();
    }
    for (const CacheMove& move : plan.moves) {
      apply(move);
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (const StepPlan::Start& start : plan.starts) {
      Client& client = clients_.at(start.id);
      ASSERT_TRUE(client.pages.empty());
      for (const PageId page : start.pages) {
        ASSERT_TRUE(cached_.contains(page));
        ASSERT_FALSE(cached_[page].is_in_ram);
        ASSERT_EQ(cached_[page].scope, scope_of(client)) << "a page of another adapter or salt";
        client.pages.push_back(cached_[page].tokens);
      }
      if (!limits_.needs_states || start.pages.empty()) continue;
      ASSERT_TRUE(states_.contains(start.pages.back()));
      client.state = states_[start.pages.back()].tokens;
      ++states_restored_;
    }
  }

  void apply(const CacheMove& move) {
    using Kind = CacheMove::Kind;
    switch (move.kind) {
      case Kind::kDrop:
        ASSERT_EQ(cached_.erase(move.page), 1u);
        states_.erase(move.page);
        return;
      case Kind::kDropState:
        ASSERT_EQ(states_.erase(move.page), 1u);
        return;
      case Kind::kKeepState:
        ASSERT_FALSE(states_.contains(move.page));
        states_[move.page].tokens = clients_.at(move.sequence).state;
        return;
      case Kind::kPageToRam:
      case Kind::kPageToDevice: {
        ASSERT_TRUE(cached_.contains(move.page));
        const bool to_ram = move.kind == Kind::kPageToRam;
        ASSERT_NE(cached_[move.page].is_in_ram, to_ram);
        cached_[move.page].is_in_ram = to_ram;
        moves_back_ += to_ram ? 0 : 1;
        break;
      }
      case Kind::kStateToRam:
        ASSERT_TRUE(states_.contains(move.page));
        ASSERT_FALSE(states_[move.page].is_in_ram);
        states_[move.page].is_in_ram = true;
        break;
    }
    ASSERT_LE(slots_in_use(), limits_.ram_slots);
  }

  int64_t slots_in_use() const {
    int64_t slots = 0;
    for (const auto& [page, cached] : cached_) slots += cached.is_in_ram ? 1 : 0;
    for (const auto& [page, state] : states_) slots += state.is_in_ram ? limits_.state_slots : 0;
    return slots;
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
    const Advance advance = scheduler_.advance(plan);
    for (const Adoption& adoption : advance.adoptions) adopt(adoption);
    for (const CacheMove& move : advance.moves) apply(move);
    if (::testing::Test::HasFatalFailure()) return;
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
    if (limits_.needs_states) {
      ASSERT_EQ(static_cast<int64_t>(client.state.size()), chunk.first) << "a wrong state";
    }
    client.state.insert(client.state.end(), client.tokens.begin() + chunk.first,
                        client.tokens.begin() + computed);
  }

  void adopt(const Adoption& adoption) {
    Client& client = clients_.at(adoption.id);
    const std::vector<int32_t>& own = client.pages.at(adoption.index);
    ASSERT_EQ(static_cast<int64_t>(own.size()), limits_.page);
    const auto known = cached_.find(adoption.page);
    EXPECT_EQ(adoption.is_new, known == cached_.end() || known->second.is_in_ram);
    if (adoption.is_new) cached_[adoption.page] = {scope_of(client), own};
    client.pages[adoption.index] = cached_[adoption.page].tokens;
  }

  void check_pages() {
    ASSERT_GE(scheduler_.free_pages(), 0);
    const auto on_device = std::count_if(cached_.begin(), cached_.end(),
                                         [](const auto& one) { return !one.second.is_in_ram; });
    const auto states = std::count_if(states_.begin(), states_.end(),
                                      [](const auto& one) { return !one.second.is_in_ram; });
    EXPECT_EQ(scheduler_.prefixes().num_pages(), on_device);
    EXPECT_EQ(scheduler_.prefixes().num_states(), states);
    EXPECT_LE(states, limits_.num_states);
    EXPECT_EQ(scheduler_.prefixes().ram_slots_in_use(), slots_in_use());
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
    if (limits_.needs_states) {
      ASSERT_EQ(client.state, client.tokens);
    }
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
  std::map<PageId, Cached> cached_;
  std::map<PageId, State> states_;
  int64_t moves_back_ = 0, states_restored_ = 0;
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

// With recurrent layers, few states, and host memory of a few slots or none.
TEST(SchedulerSimulation, RandomTrafficKeepsStatesAndHostMemoryInStep) {
  int completed = 0;
  int64_t back = 0, restored = 0, reused = 0;
  for (uint32_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(seed);
    const SchedulerLimits limits{.max_running = 1 + seed % 8,
                                 .max_waiting = 30,
                                 .num_pages = 24 + seed % 40,
                                 .page = 1 + seed % 5,
                                 .needs_states = seed % 3 != 0,
                                 .num_states = seed % 11,
                                 .ram_slots = seed % 4 == 0 ? 0 : seed % 50,
                                 .state_slots = 1 + seed % 7};
    Simulation simulation(seed, limits, 8 + seed % 30);
    simulation.run(400);
    if (HasFatalFailure()) return;
    completed += simulation.completed();
    back += simulation.moves_back();
    restored += simulation.states_restored();
    reused += simulation.reused();
  }
  EXPECT_GT(completed, 10'000);
  EXPECT_GT(back, 2'000);
  EXPECT_GT(restored, 1'000);
  EXPECT_GT(reused, 10'000);
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
