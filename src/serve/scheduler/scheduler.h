// Continuous batching with chunked prefill: plans the tokens of the next step. Pure logic, without
// model, memory or clock.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "serve/scheduler/prefix_cache.h"

namespace moracle::serve {

struct SchedulerLimits {
  int64_t max_running = 64;   ///< running sequences, which hold pages
  int64_t max_waiting = 256;  ///< queued sequences beyond max_running
  int64_t num_pages = 0;      ///< pages of the KV cache
  int64_t page = 1;           ///< tokens per page
  bool prefix_cache = true;   ///< sequences share pages of equal prefixes
  /// Of the prefix cache, as in PrefixLimits. Chunks of prompts then end where states are kept.
  bool needs_states = false;
  int64_t num_states = 0, ram_slots = 0, state_slots = 1;
};

/// A sequence to generate.
struct Submission {
  SequenceId id = 0;  ///< unique
  std::vector<int32_t> prompt;
  int64_t max_tokens = 1;  ///< limit of new tokens
  int32_t adapter = -1;
  std::string salt;  ///< scope in the prefix cache
  /// Time at which the sequence expires, on the clock of Scheduler::next.
  double deadline = std::numeric_limits<double>::infinity();
  /// Skip the prefix cache: the caller needs the logits of every prompt position.
  bool scores_prompt = false;
  /// Waits for this sequence's prefill, to share its pages. 0: none.
  SequenceId after = 0;
};

enum class Admission {
  kQueued,
  kQueueFull,  ///< rejected, retry later
  kTooLong,    ///< rejected: needs more pages than the KV cache has
};

/// Tokens [first, first + count) of a sequence, then drafts.
struct Chunk {
  SequenceId id = 0;
  int64_t first = 0, count = 0;
  bool samples = false;  ///< the chunk reaches the last token: sample from its logits
  int64_t drafts = 0;    ///< tokens to verify after the last one
  int64_t num_rows() const { return count + drafts; }
};

/// Plan of one step. Apply the members in this order.
struct StepPlan {
  std::vector<SequenceId> expired;    ///< past their deadline; removed from the scheduler
  std::vector<SequenceId> preempted;  ///< lost their pages; recomputed later
  std::vector<CacheMove> moves;       ///< of the prefix cache, in order
  struct Start {
    SequenceId id;
    std::vector<PageId> pages;  ///< cached pages that hold its first tokens, on the device
  };
  std::vector<Start> starts;
  std::vector<Chunk> chunks;
  int64_t num_tokens = 0;  ///< sum over all chunks
};

/// A full page that enters the prefix cache: page `index` of the sequence becomes cached page
/// `page`.
struct Adoption {
  SequenceId id = 0;
  int64_t index = 0;
  PageId page = 0;
  bool is_new = true;  ///< false: an equal page is cached; use it and free the sequence's own
};

/// Changes of the prefix cache after a step. Apply the adoptions first, then the moves in order.
struct Advance {
  std::vector<Adoption> adoptions;
  std::vector<CacheMove> moves;
};

/// Scheduling rules:
/// - Decode comes first: one token of each running sequence with a complete prompt.
/// - The oldest prompt gets at least half of the remaining token budget, shorter prompts get the
///   rest, shortest first. A long prompt delays a short one by one step, and always proceeds.
/// - Drafts take what decoding and prompts leave of the budget, in pages that need no preemption.
/// - Sequences start in order of arrival, when the KV cache has pages for all their tokens. At most
///   kMaxPassed later sequences may overtake one that lacks pages.
/// - If a sequence lacks a page, unused cached pages are evicted first. Then the youngest sequence
/// is
///   preempted: it loses its pages and is recomputed later. The oldest sequence always proceeds.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  Admission submit(Submission submission);
  /// Plans the next step at time `now`, with at most `budget` tokens; `budget` is at least
  /// max_running. A plan without chunks means that no sequence can proceed. Call advance() before
  /// the next plan.
  StepPlan next(double now, int64_t budget);
  /// Marks the chunks of the last plan as computed. Returns the pages that are full now, and the
  /// states to keep.
  Advance advance(const StepPlan& plan);
  /// Appends the token sampled after a chunk with `samples`.
  void append(SequenceId id, int32_t token);
  /// Requests drafts for the next plan. Ignores sequences that do not decode.
  void request_drafts(SequenceId id, int64_t count);
  /// After a chunk with drafts, whose accepted drafts were appended: `computed` tokens of the
  /// sequence are in its KV cache. Fewer than the chunk's known tokens are computed again.
  void settle_drafts(SequenceId id, int64_t computed);
  /// Removes a complete, cancelled or failed sequence and frees its pages. Ignores unknown ids.
  void finish(SequenceId id);

  /// While paused, no new sequence starts.
  void pause(bool paused) { paused_ = paused; }
  /// True if the next step samples a token of the sequence.
  bool decodes(SequenceId id) const;
  /// Tokens that the next step of a decoding sequence computes, without drafts.
  int64_t known_tokens(SequenceId id) const { return sequences_.at(id).remaining(); }
  int64_t num_decoding() const;
  /// True if a sequence has started. False for unknown ids.
  bool has_started(SequenceId id) const;
  /// Drops all unused cached pages and all states, for example after a change of weights.
  std::vector<CacheMove> drop_cached();

  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  /// True if no started sequence is unfinished.
  bool is_idle() const { return num_started_ == 0; }
  int64_t num_pages() const { return limits_.num_pages; }
  int64_t free_pages() const { return free_; }
  const PrefixCache& prefixes() const { return prefixes_; }
  int64_t num_preemptions() const { return num_preemptions_; }
  /// Tokens reused from the prefix cache.
  int64_t num_reused_tokens() const { return num_reused_tokens_; }
  /// Pages of running sequences that are not shared.
  int64_t own_pages() const;

  static constexpr int64_t kMaxPassed = 16;

 private:
  struct Sequence {
    Submission submission;
    std::vector<int32_t> tokens;   // prompt and new tokens
    int64_t computed = 0;          // tokens with keys and values in pages
    int64_t own = 0;               // private pages, some still empty
    std::vector<PageId> path;      // cached pages that hold its first tokens
    int64_t branch = 0;            // tokens in cached pages at whose end no state is kept
    std::vector<int64_t> thinned;  // numbers of its pages whose states are kept for the time being
    int64_t passed = 0;            // younger sequences that overtook this one
    int64_t again = 0;             // tokens that are computed again after rejected drafts
    int64_t wanted_drafts = 0;     // for the next plan
    uint64_t order = 0;            // order of arrival
    bool has_run = false;
    int64_t pages() const { return own + static_cast<int64_t>(path.size()); }
    int64_t remaining() const { return static_cast<int64_t>(tokens.size()) - computed; }
    bool decodes() const { return remaining() == 1 + again; }
  };
  using Queue = std::map<uint64_t, Sequence*>;  // by arrival

  int64_t pages_of(int64_t tokens) const { return (tokens + limits_.page - 1) / limits_.page; }
  void expire(double now, StepPlan& plan);
  void plan_decoding(int64_t budget, StepPlan& plan);
  void plan_drafts(int64_t budget, StepPlan& plan);
  void start_waiting(StepPlan& plan);
  void plan_prompts(int64_t budget, StepPlan& plan);
  bool must_wait(const Sequence& sequence) const;
  bool start(Sequence& sequence, StepPlan& plan);
  bool free_a_page(StepPlan& plan);
  void preempt(Sequence& sequence, StepPlan& plan);
  void give_back(Sequence& sequence);
  void add_chunk(const Sequence& sequence, int64_t count, StepPlan& plan);
  void adopt_full_pages(Sequence& sequence, std::vector<Adoption>& adoptions);
  int64_t chunk_end(const Sequence& sequence, int64_t end) const;
  void keep_state(Sequence& sequence, std::vector<CacheMove>& moves);
  bool needs_states() const { return limits_.prefix_cache && limits_.needs_states; }

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
