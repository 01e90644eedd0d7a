#include "serve/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

namespace moracle::serve {
namespace {

PrefixScope scope_of(const Submission& submission) {
  return {submission.adapter, submission.salt};
}

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits)
    : limits_(limits),
      prefixes_({.page = limits.page,
                 .needs_states = limits.needs_states,
                 .num_states = limits.num_states,
                 .ram_slots = limits.ram_slots,
                 .state_slots = limits.state_slots}),
      free_(limits.num_pages) {}

Admission Scheduler::submit(Submission submission) {
  const auto prompt = static_cast<int64_t>(submission.prompt.size());
  // The last new token never enters the KV cache.
  if (pages_of(prompt + std::max<int64_t>(submission.max_tokens - 1, 0)) > limits_.num_pages)
    return Admission::kTooLong;
  if (num_waiting() + num_running() >= limits_.max_waiting + limits_.max_running)
    return Admission::kQueueFull;
  Sequence& sequence = sequences_[submission.id];
  sequence.tokens = submission.prompt;
  sequence.order = next_order_++;
  sequence.submission = std::move(submission);
  waiting_.emplace(sequence.order, &sequence);
  return Admission::kQueued;
}

StepPlan Scheduler::next(double now, int64_t budget) {
  StepPlan plan;
  expire(now, plan);
  plan_decoding(budget, plan);
  start_waiting(plan);
  plan_prompts(budget, plan);
  plan_drafts(budget, plan);
  return plan;
}

void Scheduler::expire(double now, StepPlan& plan) {
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.submission.deadline <= now) plan.expired.push_back(id);
  }
  for (const SequenceId id : plan.expired) finish(id);
}

void Scheduler::add_chunk(const Sequence& sequence, int64_t count, StepPlan& plan) {
  plan.chunks.push_back(
      {sequence.submission.id, sequence.computed, count, count == sequence.remaining()});
  plan.num_tokens += count;
}

// Oldest first: preemption takes the youngest, which has no chunk yet.
void Scheduler::plan_decoding(int64_t budget, StepPlan& plan) {
  int64_t later = num_running();  // each gets at least one token of the budget
  for (auto at = running_.begin(); at != running_.end();) {
    Sequence& sequence = *at->second;
    bool preempted_itself = false;
    --later;
    // Tokens that do not fit are computed like a prompt, in several steps.
    if (sequence.decodes() && plan.num_tokens + sequence.remaining() + later <= budget) {
      const int64_t count = sequence.remaining();
      while (sequence.pages() < pages_of(sequence.computed + count)) {
        if (free_a_page(plan)) {
          --free_;
          ++sequence.own;
          continue;
        }
        Sequence& youngest = *running_.rbegin()->second;
        preempted_itself = &youngest == &sequence;
        if (preempted_itself) break;
        preempt(youngest, plan);
      }
      if (!preempted_itself) add_chunk(sequence, count, plan);
    }
    ++at;
    if (preempted_itself) preempt(sequence, plan);
  }
}

// Shares what decoding sequences and prompts leave of the budget, oldest first.
void Scheduler::plan_drafts(int64_t budget, StepPlan& plan) {
  for (Chunk& chunk : plan.chunks) {
    Sequence& sequence = sequences_.at(chunk.id);
    const int64_t end = chunk.first + chunk.count;
    if (!chunk.samples) continue;
    int64_t drafts = std::min(sequence.wanted_drafts, budget - plan.num_tokens);
    while (drafts > 0 && sequence.pages() < pages_of(end + drafts)) {
      if (free_a_page(plan)) {
        --free_;
        ++sequence.own;
      } else {
        drafts = sequence.pages() * limits_.page - end;
      }
    }
    chunk.drafts = std::max<int64_t>(drafts, 0);
    plan.num_tokens += chunk.drafts;
  }
  for (const auto& [order, sequence] : running_) sequence->wanted_drafts = 0;
}

// Frees a page if necessary, by eviction from the prefix cache. False: no page is evictable.
bool Scheduler::free_a_page(StepPlan& plan) {
  if (free_ > 0) return true;
  if (!prefixes_.evict(plan.moves)) return false;
  ++free_;
  return true;
}

void Scheduler::give_back(Sequence& sequence) {
  prefixes_.release(sequence.path);
  sequence.path.clear();
  sequence.thinned.clear();
  free_ += sequence.own;
  sequence.own = sequence.computed = sequence.again = sequence.wanted_drafts = 0;
}

void Scheduler::preempt(Sequence& sequence, StepPlan& plan) {
  give_back(sequence);
  running_.erase(sequence.order);
  waiting_.emplace(sequence.order, &sequence);
  plan.preempted.push_back(sequence.submission.id);
  ++num_preemptions_;
}

bool Scheduler::must_wait(const Sequence& sequence) const {
  if (paused_ && !sequence.has_run) return true;
  const auto before = sequences_.find(sequence.submission.after);
  return before != sequences_.end() &&
         before->second.computed < static_cast<int64_t>(before->second.submission.prompt.size());
}

void Scheduler::start_waiting(StepPlan& plan) {
  // Bound the search behind sequences that lack pages: each prefix lookup costs time.
  constexpr int kMostBlocked = 8;
  int num_blocked = 0;
  Sequence* blocked = nullptr;
  for (auto at = waiting_.begin(); at != waiting_.end() && num_blocked < kMostBlocked;) {
    if (num_running() >= limits_.max_running) return;
    Sequence& sequence = *at->second;
    if (must_wait(sequence)) {
      ++at;
    } else if (start(sequence, plan)) {
      at = waiting_.erase(at);
      if (blocked != nullptr && ++blocked->passed >= kMaxPassed) return;
    } else {
      if (blocked == nullptr) blocked = &sequence;
      if (blocked->passed >= kMaxPassed) return;
      ++num_blocked;
      ++at;
    }
  }
}

bool Scheduler::start(Sequence& sequence, StepPlan& plan) {
  const auto known = static_cast<int64_t>(sequence.tokens.size());
  // Compute at least one token: its logits give the next one.
  const bool reuse = limits_.prefix_cache && !sequence.submission.scores_prompt;
  PrefixCache::Taken taken;
  if (reuse)
    taken =
        prefixes_.take(scope_of(sequence.submission), sequence.tokens, (known - 1) / limits_.page);
  std::vector<PageId>& pages = taken.pages;
  const auto shared = static_cast<int64_t>(pages.size());
  const int64_t own = pages_of(known) - shared;
  const int64_t needed = own + prefixes_.num_in_ram(pages);
  // Leave one page per running sequence, so that admission does not cause a preemption soon.
  if (needed > free_ + prefixes_.num_unused() - num_running()) {
    prefixes_.release(pages);
    return false;
  }
  for (int64_t i = 0; i < needed; ++i) {
    free_a_page(plan);
    --free_;
  }
  prefixes_.bring(pages, plan.moves);
  sequence.branch = taken.num_matching > shared ? taken.num_matching * limits_.page : 0;
  sequence.own = own;
  sequence.path = pages;
  sequence.computed = shared * limits_.page;
  num_reused_tokens_ += sequence.computed;
  if (!sequence.has_run) ++num_started_;
  sequence.has_run = true;
  running_.emplace(sequence.order, &sequence);
  plan.starts.push_back({sequence.submission.id, std::move(pages)});
  return true;
}

void Scheduler::plan_prompts(int64_t budget, StepPlan& plan) {
  std::vector<std::pair<Sequence*, int64_t>> prompts;  // with the token count of this step
  std::unordered_map<SequenceId, bool> has_chunk;
  for (const Chunk& chunk : plan.chunks) has_chunk[chunk.id] = true;
  for (const auto& [order, sequence] : running_) {
    if (!has_chunk.contains(sequence->submission.id)) prompts.push_back({sequence, 0});
  }
  int64_t left = budget - plan.num_tokens;
  if (prompts.empty() || left < 1) return;
  const auto give = [&](std::pair<Sequence*, int64_t>& prompt, int64_t most) {
    const int64_t count = std::min({prompt.first->remaining() - prompt.second, most, left});
    prompt.second += count;
    left -= count;
  };
  give(prompts.front(), (left + 1) / 2);
  std::vector<size_t> shortest_first(prompts.size() - 1);
  for (size_t i = 0; i < shortest_first.size(); ++i) shortest_first[i] = i + 1;
  std::stable_sort(shortest_first.begin(), shortest_first.end(), [&](size_t a, size_t b) {
    return prompts[a].first->remaining() < prompts[b].first->remaining();
  });
  for (const size_t i : shortest_first) give(prompts[i], left);
  give(prompts.front(), left);
  for (const auto& [sequence, count] : prompts) {
    if (count == 0) continue;
    const int64_t first = sequence->computed;
    add_chunk(*sequence, chunk_end(*sequence, first + count) - first, plan);
  }
}

// Ends a chunk of a prompt where a state is worth keeping: where cached pages without a state end,
// else at the last page border from which an equal prompt could go on.
int64_t Scheduler::chunk_end(const Sequence& sequence, int64_t end) const {
  if (!needs_states()) return end;
  if (sequence.branch > sequence.computed && sequence.branch < end) return sequence.branch;
  const auto before_last = static_cast<int64_t>(sequence.tokens.size()) - 1;
  const int64_t border = std::min(end, before_last) / limits_.page * limits_.page;
  return border > sequence.computed ? border : end;
}

// Keeps the state at the end of `sequence`, which is a page border. States at branches and at the
// end of a prompt stay until others need their memory. The others are candidates: a sequence keeps
// few of them, evenly spread.
void Scheduler::keep_state(Sequence& sequence, std::vector<CacheMove>& moves) {
  const SequenceId id = sequence.submission.id;
  const auto prompt = static_cast<int64_t>(sequence.submission.prompt.size());
  const int64_t page = limits_.page, length = sequence.computed;
  const bool lasts = length == sequence.branch || length == (prompt - 1) / page * page;
  if (!prefixes_.add_state(sequence.path.back(), id, lasts, moves) || lasts) return;
  std::vector<int64_t>& kept = sequence.thinned;
  kept.push_back(length / page);
  if (static_cast<int64_t>(kept.size()) <= std::clamp<int64_t>(limits_.num_states / 4, 1, 8))
    return;
  size_t closest = 0;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i + 1 < kept.size(); ++i) {
    const int64_t gap = kept[i + 1] - (i == 0 ? 0 : kept[i - 1]);
    if (gap < least) least = gap, closest = i;
  }
  prefixes_.drop_state_if_unused(sequence.path[static_cast<size_t>(kept[closest] - 1)], moves);
  kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(closest));
}

Advance Scheduler::advance(const StepPlan& plan) {
  Advance advance;
  for (const Chunk& chunk : plan.chunks) {
    const auto at = sequences_.find(chunk.id);
    if (at == sequences_.end()) continue;  // failed in this step
    at->second.computed += chunk.count;
    at->second.again = std::max<int64_t>(at->second.again - chunk.count, 0);
    if (!limits_.prefix_cache) continue;
    Sequence& sequence = at->second;
    adopt_full_pages(sequence, advance.adoptions);
    // Drafts are part of the state.
    if (needs_states() && chunk.drafts == 0 && sequence.computed % limits_.page == 0)
      keep_state(sequence, advance.moves);
  }
  return advance;
}

void Scheduler::adopt_full_pages(Sequence& sequence, std::vector<Adoption>& adoptions) {
  for (;;) {
    const auto index = static_cast<int64_t>(sequence.path.size());
    if ((index + 1) * limits_.page > sequence.computed) return;
    const auto tokens =
        std::span<const int32_t>(sequence.tokens).subspan(index * limits_.page, limits_.page);
    const auto added = prefixes_.add(scope_of(sequence.submission), sequence.path, tokens);
    sequence.path.push_back(added.id);
    --sequence.own;
    if (!added.is_new) ++free_;
    adoptions.push_back({sequence.submission.id, index, added.id, added.is_new});
  }
}

void Scheduler::append(SequenceId id, int32_t token) {
  sequences_.at(id).tokens.push_back(token);
}

void Scheduler::request_drafts(SequenceId id, int64_t count) {
  Sequence& sequence = sequences_.at(id);
  if (sequence.decodes()) sequence.wanted_drafts = count;
}

void Scheduler::settle_drafts(SequenceId id, int64_t computed) {
  Sequence& sequence = sequences_.at(id);
  sequence.computed = computed;
  sequence.again = sequence.remaining() - 1;
  // Pages that only rejected drafts needed.
  const int64_t unused = sequence.pages() - pages_of(static_cast<int64_t>(sequence.tokens.size()));
  if (unused <= 0) return;
  sequence.own -= unused;
  free_ += unused;
}

bool Scheduler::decodes(SequenceId id) const {
  const auto at = sequences_.find(id);
  return at != sequences_.end() && running_.contains(at->second.order) && at->second.decodes();
}

int64_t Scheduler::num_decoding() const {
  return std::count_if(running_.begin(), running_.end(),
                       [](const auto& one) { return one.second->decodes(); });
}

void Scheduler::finish(SequenceId id) {
  const auto at = sequences_.find(id);
  if (at == sequences_.end()) return;
  Sequence& sequence = at->second;
  give_back(sequence);
  running_.erase(sequence.order);
  waiting_.erase(sequence.order);
  if (sequence.has_run) --num_started_;
  sequences_.erase(at);
}

bool Scheduler::has_started(SequenceId id) const {
  const auto at = sequences_.find(id);
  return at != sequences_.end() && at->second.has_run;
}

std::vector<CacheMove> Scheduler::drop_cached() {
  std::vector<CacheMove> moves;
  const int64_t before = prefixes_.num_pages();
  prefixes_.drop_all(moves);
  free_ += before - prefixes_.num_pages();
  return moves;
}

int64_t Scheduler::own_pages() const {
  int64_t pages = 0;
  for (const auto& [order, sequence] : running_) pages += sequence->own;
  return pages;
}

}  // namespace moracle::serve
