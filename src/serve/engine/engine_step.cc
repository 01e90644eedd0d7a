// One step of the engine: apply the scheduler's plan, run the model, sample.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "kernels/kernel_device.h"
#include "serve/engine/engine.h"

namespace moracle::serve {
namespace {

// A draw gave nothing although the model's logits are finite: the request forbids every token.
constexpr int32_t kAllForbidden = -2;
static_assert(kAllForbidden != kNothingDrawn);

// `logits`: of the model, before edits.
int32_t why_nothing(std::span<const float> logits) {
  const auto is_bad = [](float logit) {
    return std::isnan(logit) || logit == std::numeric_limits<float>::infinity();
  };
  const bool is_finite =
      std::none_of(logits.begin(), logits.end(), is_bad) &&
      std::any_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); });
  return is_finite ? kAllForbidden : kNothingDrawn;
}

}  // namespace

void Engine::step() {
  const double start = now();
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
  profiler_.end("scheduling");
  profiler_.begin_step();
  compute(plan.chunks);
  profiler_.end_step();
  const double seconds = now() - start;
  budget_.measured(plan.num_tokens, seconds);
  metrics_.step(of_prompts, sampled_in_step_, seconds);
  metrics_.parts(profiler_.take());
  if (!leader_.lost()) rebalancing_.step_done();
}

void Engine::apply(StepPlan& plan) {
  for (const SequenceId id : plan.expired) end(id, {.finish = Finish::kTimeout});
  for (const SequenceId id : plan.preempted) leader_.drop(id);
  leader_.drop_pages(plan.dropped);
  for (const StepPlan::Start& start : plan.starts) {
    Sequence& sequence = sequences_.at(start.id);
    const int64_t capacity = sequence.prompt_size() + std::max<int64_t>(sequence.job.max_tokens, 1);
    const auto shared = static_cast<int64_t>(start.pages.size());
    if (sequence.num_new() == 0) sequence.reused_tokens = shared * leader_.page();
    const Status made =
        leader_.start(start.id, std::min(capacity, model_.max_context()), start.pages);
    if (made) continue;
    end(start.id, {.finish = Finish::kFailed, .message = made.error().to_string()});
    std::erase_if(plan.chunks, [&](const Chunk& chunk) { return chunk.id == start.id; });
  }
}

// Runs the chunks and samples. If the step fails, runs each chunk alone, so that one sequence's
// error does not end the others.
void Engine::compute(std::span<const Chunk> chunks) {
  const DeviceLock lock = model_.device().lock();  // hold the device until the logits are read
  const auto work = [&]() -> Status { return forward(chunks); };
  Status done = or_out_of_memory("step", work);
  profiler_.enqueued();
  answer_sampled();
  if (leader_.lost()) return;  // refuse_unfinished() ends all sequences
  if (!done) {
    if (chunks.size() == 1)
      return end(chunks[0].id, {.finish = Finish::kFailed, .message = done.error().to_string()});
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (sequences_.contains(chunks[i].id)) compute(chunks.subspan(i, 1));
    }
    return;
  }
  StepPlan computed;
  computed.chunks.assign(chunks.begin(), chunks.end());
  for (const Adoption& adoption : scheduler_.advance(computed)) leader_.adopt(adoption);
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
  for (const Chunk& chunk : chunks) {
    const Sequence& sequence = sequences_.at(chunk.id);
    steps.push_back({chunk.id, std::span(sequence.tokens).subspan(chunk.first, chunk.count),
                     sequence.job.adapter < 0 ? -1 : slots_.at(sequence.job.adapter)});
  }
  return leader_.forward(steps);
}

Status Engine::score_prompts(std::span<const Chunk> chunks) {
  int64_t row = 0;
  for (const Chunk& chunk : chunks) {
    const auto at = sequences_.find(chunk.id);
    row += chunk.count;
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
                  leader_.logits(row - chunk.count + position - chunk.first, count));
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

Status Engine::sample_next(std::span<const Chunk> chunks) {
  std::vector<SequenceId> pending;  // consecutive rows, from `first` on
  int64_t row = 0, first = 0;
  bool edited = false;  // whether the pending sequences edit their logits
  const auto sample_pending = [&]() -> Status {
    if (pending.empty()) return {};
    const std::vector<SequenceId> ids = std::exchange(pending, {});
    return edited ? sample_from_all_logits(first, ids) : sample_rows(first, ids);
  };
  for (const Chunk& chunk : chunks) {
    row += chunk.count;
    const auto at = sequences_.find(chunk.id);
    if (!chunk.samples || at == sequences_.end()) continue;
    const Sequence& sequence = at->second;
    if (sequence.job.max_tokens == 0) {
      end(chunk.id, {.finish = Finish::kLength});
      continue;
    }
    if (sequence.needs_own_row()) {
      MORACLE_CHECK(sample_row(row - 1, chunk.id));
      continue;
    }
    const auto count = static_cast<int64_t>(pending.size());
    const bool is_edited = !sequence.editor.changes_nothing();
    if (count == Model::kMaxLogitRows || first + count != row - 1 || edited != is_edited)
      MORACLE_CHECK(sample_pending());
    if (pending.empty()) first = row - 1;
    edited = is_edited;
    pending.push_back(chunk.id);
  }
  return sample_pending();
}

// Samples from full logits rows, with edits. Other ranks send the rows that they computed.
Status Engine::sample_from_all_logits(int64_t row, std::span<const SequenceId> ids) {
  const auto count = static_cast<int64_t>(ids.size());
  MORACLE_TRY(const std::span<const float> logits, leader_.logits(row, count));
  const auto vocab = static_cast<size_t>(model_.vocab_size());
  std::vector<int32_t> tokens(ids.size());
  kernel_device(model_.device()).host_threads().split(count, [&](int64_t begin, int64_t end) {
    std::vector<float> edited;
    for (int64_t i = begin; i < end; ++i) {
      Sequence& sequence = sequences_.at(ids[i]);
      std::span<const float> one = logits.subspan(i * vocab, vocab);
      if (!sequence.editor.changes_nothing()) {
        edited.assign(one.begin(), one.end());
        sequence.editor.apply(edited);
        one = edited;
      }
      tokens[i] = sequence.sampler.draw(one).value_or(kNothingDrawn);
      if (tokens[i] == kNothingDrawn) tokens[i] = why_nothing(logits.subspan(i * vocab, vocab));
    }
  });
  profiler_.end_on_device("sampling");
  for (size_t i = 0; i < ids.size(); ++i) take_token(ids[i], tokens[i], {});
  profiler_.end("scheduling");
  return {};
}

Status Engine::sample_rows(int64_t row, std::span<const SequenceId> ids) {
  if (leader_.is_spread()) return sample_from_all_logits(row, ids);
  std::vector<Sampler> samplers;
  for (const SequenceId id : ids) samplers.push_back(std::move(sequences_.at(id).sampler));
  std::vector<int32_t> tokens(ids.size());
  const Status drawn = draw(model_, leader_, row, samplers, tokens);
  for (size_t i = 0; i < ids.size(); ++i) sequences_.at(ids[i]).sampler = std::move(samplers[i]);
  MORACLE_CHECK(drawn);
  profiler_.end_on_device("sampling");
  for (size_t i = 0; i < ids.size(); ++i) take_token(ids[i], tokens[i], {});
  profiler_.end("scheduling");
  return {};
}

Status Engine::sample_row(int64_t row, SequenceId id) {
  Sequence& sequence = sequences_.at(id);
  MORACLE_TRY(const std::span<const float> logits, leader_.logits(row, 1));
  std::span<const float> all = logits;
  if (sequence.edits()) {
    edited_.assign(logits.begin(), logits.end());
    if (const Status edited = sequence.edit(edited_); !edited) {
      // The vocabulary has no token that the grammar allows.
      const bool is_forbidden = edited.error().kind == ErrorKind::kUnsupported;
      end(id, {.finish = is_forbidden ? Finish::kForbidden : Finish::kFailed,
               .message = edited.error().to_string()});
      return {};
    }
    all = edited_;
  }
  int32_t token = sequence.sampler.draw(all).value_or(kNothingDrawn);
  if (token == kNothingDrawn) token = why_nothing(logits);
  std::vector<TokenScore> scores;
  if (sequence.job.num_top && token >= 0)
    scores.push_back(scorer_.score(logits, token, *sequence.job.num_top));
  profiler_.end_on_device("sampling");
  take_token(id, token, std::move(scores));
  profiler_.end("scheduling");
  return {};
}

// Defers the answer unless the token ends the sequence, so that the next step starts first.
void Engine::take_token(SequenceId id, int32_t token, std::vector<TokenScore> scores) {
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
