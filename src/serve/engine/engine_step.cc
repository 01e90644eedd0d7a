// One step of the engine: apply the scheduler's plan, run the model, sample.
#include <algorithm>
#include <utility>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "kernels/kernel_device.h"
#include "serve/engine/engine.h"

namespace moracle::serve {

void Engine::step() {
  const double start = now();
  if (const Status drafted = or_out_of_memory("drafts", [&] { return request_drafts(); }); !drafted)
    for (auto& [id, sequence] : sequences_) {
      sequence.drafts.clear();
      scheduler_.request_drafts(id, 0);
    }
  StepPlan plan = scheduler_.next(start, std::max(budget_.tokens(), scheduler_.num_running()));
  apply(plan);
  if (plan.chunks.empty()) return answer_sampled();
  int64_t of_prompts = 0;
  for (const Chunk& chunk : plan.chunks) {
    const auto at = sequences_.find(chunk.id);
    if (at == sequences_.end()) continue;
    of_prompts += std::clamp<int64_t>(at->second.prompt_size() - chunk.first, 0, chunk.count);
  }
  sampled_in_step_ = 0;
  const DecodeLoad load = decode_load(plan);
  profiler_.end("scheduling");
  profiler_.begin_step();
  compute(plan.chunks);
  profiler_.end_step();
  const double seconds = now() - start;
  budget_.measured(plan.num_tokens, seconds);
  metrics_.step(of_prompts, sampled_in_step_, seconds);
  note_drafts(plan, load, seconds);
  metrics_.parts(profiler_.take());
  if (!leader_.lost()) rebalancing_.step_done();
}

void Engine::apply(StepPlan& plan) {
  for (const SequenceId id : plan.expired) end(id, {.finish = Finish::kTimeout});
  for (const SequenceId id : plan.preempted) leader_.drop(id);
  move(plan.moves);
  for (const StepPlan::Start& start : plan.starts) {
    Sequence& sequence = sequences_.at(start.id);
    const int64_t capacity = sequence.prompt_size() + std::max<int64_t>(sequence.job.max_tokens, 1);
    const auto shared = static_cast<int64_t>(start.pages.size());
    if (sequence.num_new() == 0) sequence.reused_tokens = shared * leader_.page();
    const Status made =
        leader_.start(start.id, std::min(capacity, model_.max_context()), start.pages);
    if (made) {
      if (shared > 0 && leader_.is_recurrent()) ++traffic_.states_restored;
      continue;
    }
    end(start.id, {.finish = Finish::kFailed, .message = made.error().to_string()});
    std::erase_if(plan.chunks, [&](const Chunk& chunk) { return chunk.id == start.id; });
  }
}

// After an error the scheduler counts pages or states that are lost: forget all that no sequence
// uses. A sequence that was to begin with a lost page fails.
void Engine::move(std::span<const CacheMove> moves) {
  const int64_t page = leader_.pages().page_bytes(), state = leader_.pages().state_bytes();
  for (const CacheMove& one : moves) {
    using Kind = CacheMove::Kind;
    if (one.kind == Kind::kPageToRam) traffic_.bytes_saved += page;
    if (one.kind == Kind::kStateToRam) traffic_.bytes_saved += state;
  }
  if (leader_.move(moves)) return;
  ++traffic_.errors;
  (void)leader_.move(scheduler_.drop_cached()).ok();
}

// Runs the chunks and samples. If the step fails, runs each chunk alone, so that one sequence's
// error does not end the others.
void Engine::compute(std::span<const Chunk> chunks) {
  const DeviceLock lock = model_.device().lock();  // hold the device until the logits are read
  const auto work = [&]() -> Status { return forward(chunks); };
  Status done = or_out_of_memory("step", work);
  profiler_.enqueued();
  answer_sampled();
  if (overlaps_answers_ && done) prepare_masks(chunks);
  if (leader_.lost()) return;  // refuse_unfinished() ends all sequences
  if (!done && done.error().kind == ErrorKind::kOutOfMemory) {
    // The device has less memory than the scheduler counts on: free what no sequence uses.
    const std::vector<CacheMove> dropped = scheduler_.drop_cached();
    move(dropped);
    if (!dropped.empty()) return compute(chunks);
  }
  if (!done) {
    if (chunks.size() == 1)
      return end(chunks[0].id, {.finish = Finish::kFailed, .message = done.error().to_string()});
    for (Chunk chunk : chunks) {
      chunk.drafts = 0;
      if (sequences_.contains(chunk.id)) compute({&chunk, 1});
    }
    return;
  }
  keep_rows(chunks);
  StepPlan computed;
  computed.chunks.assign(chunks.begin(), chunks.end());
  const Advance advance = scheduler_.advance(computed);
  for (const Adoption& adoption : advance.adoptions) leader_.adopt(adoption);
  move(advance.moves);
  profiler_.end("scheduling");
  done = score_prompts(chunks);
  if (done) done = sample_next(chunks);
  if (!overlaps_answers_) answer_sampled();
  leader_.note(done);
  if (done || leader_.lost()) return;
  for (const Chunk& chunk : chunks) {
    if (sequences_.contains(chunk.id))
      end(chunk.id, {.finish = Finish::kFailed, .message = done.error().to_string()});
  }
}

Status Engine::forward(std::span<const Chunk> chunks) {
  std::vector<SequenceStep> steps;
  std::deque<std::vector<int32_t>> with_drafts;
  for (const Chunk& chunk : chunks) {
    const Sequence& sequence = sequences_.at(chunk.id);
    std::span<const int32_t> tokens = std::span(sequence.tokens).subspan(chunk.first, chunk.count);
    if (chunk.drafts > 0) {
      std::vector<int32_t>& all = with_drafts.emplace_back(tokens.begin(), tokens.end());
      all.insert(all.end(), sequence.drafts.begin(), sequence.drafts.begin() + chunk.drafts);
      tokens = all;
    }
    steps.push_back(
        {chunk.id, tokens, sequence.job.adapter < 0 ? -1 : slots_.at(sequence.job.adapter)});
  }
  return leader_.forward(steps);
}

Status Engine::score_prompts(std::span<const Chunk> chunks) {
  int64_t row = 0;
  for (const Chunk& chunk : chunks) {
    const auto at = sequences_.find(chunk.id);
    const int64_t first_row = row;
    row += chunk.num_rows();
    if (at == sequences_.end()) continue;  // its last token ended it
    Sequence& sequence = at->second;
    // The logits at position p score token p + 1. Scores are kept over a preemption, so skip
    // positions that have one.
    auto& scores = sequence.prompt_scores;
    const int64_t last = std::min(chunk.first + chunk.count, sequence.prompt_size() - 1);
    auto position = std::max(chunk.first, static_cast<int64_t>(scores.size()));
    while (sequence.job.scores_prompt && position < last) {
      const int64_t count = std::min(Model::kMaxLogitRows, last - position);
      MORACLE_TRY(const std::span<const float> logits,
                  leader_.logits(first_row + position - chunk.first, count));
      const auto vocab = static_cast<size_t>(model_.vocab_size());
      const size_t old_size = scores.size();
      scores.resize(old_size + count);
      kernel_device(model_.device()).host_threads().split(count, [&](int64_t begin, int64_t end) {
        Scorer scorer;
        for (int64_t i = begin; i < end; ++i) {
          scores[old_size + i] =
              scorer.score(logits.subspan(i * vocab, vocab), sequence.tokens[position + i + 1],
                           *sequence.job.num_top);
        }
      });
      profiler_.end_on_device("scores of prompts");
      position += count;
    }
  }
  return {};
}

// Defers the answer unless the token ends the sequence, so that the next step starts first.
// Answers an accepted draft at once: the next draw depends on its edits.
void Engine::take_token(SequenceId id, int32_t token, std::vector<TokenScore> scores,
                        bool is_draft) {
  Sequence& sequence = sequences_.at(id);
  if (token == kNothingDrawn || token == kAllForbidden) {
    const bool is_forbidden = token == kAllForbidden;
    return end(id, {.finish = is_forbidden ? Finish::kForbidden : Finish::kFailed,
                    .message = str("no token may follow position ", sequence.tokens.size() - 1,
                                   is_forbidden ? sequence.forbidding_fields()
                                                : ": the logits are not finite")});
  }
  const double time = now();
  if (sequence.num_new() == 0)
    metrics_.first_token(time - sequence.submitted);
  else
    metrics_.next_token(time - sequence.last_token);
  sequence.last_token = time;
  ++sampled_in_step_;
  sequence.take(token);
  sequence.scores = std::move(scores);
  if (sequence.ends_with_last_token()) return answer(id);
  scheduler_.append(id, token);
  if (is_draft) return answer(id);
  sampled_.push_back(id);
}

// Detokenizes and answers. On an asynchronous device this overlaps the next step, which already
// includes these tokens. If a stop string ends a sequence here, its token of that step is
// discarded.
void Engine::answer_sampled() {
  if (sampled_.empty()) return;
  for (const SequenceId id : std::exchange(sampled_, {})) answer(id);
  if (overlaps_answers_ && flush_) flush_();
  profiler_.end("answers");
}

void Engine::answer(SequenceId id) {
  const auto at = sequences_.find(id);
  if (at == sequences_.end()) return;  // it was cancelled or has expired
  Sequence& sequence = at->second;
  Result<Event> event = sequence.answer();
  if (!event) return end(id, {.finish = Finish::kFailed, .message = event.error().to_string()});
  if (event->finish != Finish::kNone) return end(id, *std::move(event));
  if (sequence.num_new() == 1) {
    event->of_prompt = std::move(sequence.prompt_scores);
    sequence.job.scores_prompt = false;  // once, even after a preemption
  }
  event->prompt_tokens = sequence.prompt_size();
  event->new_tokens = sequence.num_new();
  event->reused_tokens = sequence.reused_tokens;
  sequence.job.sink(*std::move(event));
}

void Engine::end(SequenceId id, Event&& event) {
  const auto at = sequences_.find(id);
  if (at == sequences_.end()) return;
  Sequence& sequence = at->second;
  if (sequence.num_new() <= 1) event.of_prompt = std::move(sequence.prompt_scores);
  event.prompt_tokens = sequence.prompt_size();
  event.new_tokens = sequence.num_new();
  event.reused_tokens = sequence.reused_tokens;
  const char* const outcome = event.finish == Finish::kStop        ? "stop"
                              : event.finish == Finish::kLength    ? "length"
                              : event.finish == Finish::kTimeout   ? "timeout"
                              : event.finish == Finish::kStopping  ? "stopping"
                              : event.finish == Finish::kUnloaded  ? "unloaded"
                              : event.finish == Finish::kForbidden ? "forbidden"
                                                                   : "failed";
  metrics_.request_ended(outcome, now() - sequence.submitted);
  const auto sink = std::move(sequence.job.sink);
  scheduler_.finish(id);
  leader_.drop(id);
  sequences_.erase(at);
  sink(std::move(event));
}

}  // namespace moracle::serve
