// Decides which tokens of which sequences the next step computes. Pure logic: it knows no model, no
// memory and no clock.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "serve/scheduler/prefix_cache.h"

namespace moracle::serve {

using SequenceId = uint64_t;

struct SchedulerLimits {
  int64_t max_running = 64;   ///< sequences with pages, at most one token per step of each
  int64_t max_waiting = 256;  ///< sequences beyond max_running
  int64_t num_pages = 0;      ///< pages of the cache
  int64_t page = 1;           ///< tokens per page
  bool prefix_cache = true;   ///< sequences with the same beginning share pages
};

/// A sequence to generate.
struct Submission {
  SequenceId id = 0;  ///< unique
  std::vector<int32_t> prompt;
  int64_t max_tokens = 1;  ///< new tokens at most
  int32_t adapter = -1;
  std::string salt;  ///< of the prefix cache
  /// The time at which it ends unfinished, on the clock of Scheduler::next.
  double deadline = std::numeric_limits<double>::infinity();
  /// Every position of the prompt is computed again, because the caller reads its logits.
  bool scores_prompt = false;
  /// Waits until this sequence has computed its prompt, to share its pages. 0: none.
  SequenceId after = 0;
};

enum class Admission {
  kQueued,
  kQueueFull,  ///< try again later
  kTooLong,    ///< prompt and new tokens need more pages than the cache has
};

/// Tokens [first, first + count) of a sequence.
struct Chunk {
  SequenceId id = 0;
  int64_t first = 0, count = 0;
  bool samples = false;  ///< the next token follows the last token of the chunk
};

/// One step. Apply the parts in this order.
struct StepPlan {
  std::vector<SequenceId> expired;    ///< ended by their deadline; forgotten
  std::vector<SequenceId> preempted;  ///< lost their pages; they start again later
  std::vector<PageId> dropped;        ///< cached pages that are free now
  struct Start {
    SequenceId id;
    std::vector<PageId> pages;  ///< cached pages that hold its first tokens
  };
  std::vector<Start> starts;
  std::vector<Chunk> chunks;
  int64_t num_tokens = 0;  ///< of all chunks
};

/// Page `index` of a sequence is the cached page `page` from now on.
struct Adoption {
  SequenceId id = 0;
  int64_t index = 0;
  PageId page = 0;
  bool is_new = true;  ///< false: use the page with the same tokens that is there; free the own one
};

/// The rules:
/// - Sequences that decode come first, one token each.
/// - The oldest prompt gets at least half of the remaining budget. Shorter prompts get the rest,
///   the shortest first. A long prompt thus delays a short one by a step, and never stops.
/// - Sequences start in the order of arrival, when the cache has pages for all their tokens. A
///   sequence that lacks pages may be overtaken kMaxPassed times.
/// - If a sequence lacks a page, cached pages without users are evicted. Then the youngest sequence
///   loses its pages and is computed again later. The oldest sequence therefore always proceeds.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  Admission submit(Submission submission);
  /// Plans the next step at time `now`: at most `budget` tokens, which is at least max_running.
  /// Plans without chunks mean that no sequence can proceed. Call advance() before the next plan.
  StepPlan next(double now, int64_t budget);
  /// The chunks of the last plan have been computed.
  std::vector<Adoption> advance(const StepPlan& plan);
  /// Appends the token that a chunk with `samples` gave.
  void append(SequenceId id, int32_t token);
  /// Forgets a sequence and frees its pages: it is complete, cancelled or failed. Unknown ids are
  /// ignored.
  void finish(SequenceId id);

  /// While paused, only sequences that have started before proceed.
  void pause(bool paused) { paused_ = paused; }
  /// Whether a sequence has had pages. False for unknown ids.
  bool has_started(SequenceId id) const;
  /// Drops all cached pages without users, such as those of other weights.
  std::vector<PageId> drop_cached();

  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  /// True if no sequence that has started is unfinished.
  bool is_idle() const { return num_started_ == 0; }
  int64_t num_pages() const { return limits_.num_pages; }
  int64_t free_pages() const { return free_; }
  const PrefixCache& prefixes() const { return prefixes_; }
  int64_t num_preemptions() const { return num_preemptions_; }
  /// Tokens whose keys and values came from the prefix cache.
  int64_t num_reused_tokens() const { return num_reused_tokens_; }
  /// Pages that running sequences use alone.
  int64_t own_pages() const;

  static constexpr int64_t kMaxPassed = 16;

 private:
  struct Sequence {
    Submission submission;
    std::vector<int32_t> tokens;  // prompt and new tokens
    int64_t computed = 0;         // tokens whose keys and values are in pages
    int64_t own = 0;              // pages of this sequence alone, some still unused
    std::vector<PageId> path;     // cached pages that hold its first tokens
    int64_t passed = 0;           // sequences that started before this older one
    uint64_t order = 0;           // of arrival
    bool has_run = false;
    int64_t pages() const { return own + static_cast<int64_t>(path.size()); }
    int64_t remaining() const { return static_cast<int64_t>(tokens.size()) - computed; }
  };
  using Queue = std::map<uint64_t, Sequence*>;  // by order of arrival

  int64_t pages_of(int64_t tokens) const { return (tokens + limits_.page - 1) / limits_.page; }
  void expire(double now, StepPlan& plan);
  void plan_decoding(StepPlan& plan);
  void start_waiting(StepPlan& plan);
  void plan_prompts(int64_t budget, StepPlan& plan);
  bool must_wait(const Sequence& sequence) const;
  bool start(Sequence& sequence, StepPlan& plan);
  bool free_a_page(StepPlan& plan);
  void preempt(Sequence& sequence, StepPlan& plan);
  void give_back(Sequence& sequence);
  void add_chunk(const Sequence& sequence, int64_t count, StepPlan& plan);
  void adopt_full_pages(Sequence& sequence, std::vector<Adoption>& adoptions);

  const SchedulerLimits limits_;
  PrefixCache prefixes_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  Queue waiting_, running_;
  uint64_t next_order_ = 0;
  int64_t free_;
  int64_t num_started_ = 0, num_preemptions_ = 0, num_reused_tokens_ = 0;
  bool paused_ = false;
};

}  // namespace moracle::serve
