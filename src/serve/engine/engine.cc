#include "serve/engine/engine.h"

#include <algorithm>
#include <chrono>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle::serve {

Result<std::unique_ptr<Engine>> Engine::start(Model& model, const Tokenizer& tokenizer,
                                              const EngineOptions& options) {
  const int64_t page_bytes = PageStore(model).page_bytes();
  if (options.cache_bytes < page_bytes) {
    return Error{ErrorKind::kInvalidArgument, "", "--cache-bytes",
                 str("at least one page, ", page_bytes, " bytes"),
                 str("it is ", options.cache_bytes)};
  }
  if (options.max_running > model.max_num_tokens()) {
    return Error{ErrorKind::kInvalidArgument, "", "--max-sequences",
                 str("at most the tokens of a step, ", model.max_num_tokens()),
                 str("it is ", options.max_running)};
  }
  std::unique_ptr<Engine> engine(
      new Engine(model, tokenizer, options, options.cache_bytes / page_bytes));
  engine->thread_ = std::thread([e = engine.get()] { e->run(); });
  return engine;
}

Engine::Engine(Model& model, const Tokenizer& tokenizer, const EngineOptions& options,
               int64_t num_pages)
    : model_(model),
      tokenizer_(tokenizer),
      num_pages_(num_pages),
      pages_(model),
      scheduler_({.max_running = options.max_running,
                  .max_waiting = options.max_waiting,
                  .num_pages = num_pages,
                  .page = pages_.page(),
                  .prefix_cache = options.prefix_cache}),
      budget_(model.max_num_tokens(), options.step_seconds > 0 ? options.step_seconds : 1e9) {
  for (int32_t i = 0; i < options.num_adapters; ++i) slots_[i] = i;
  publish();
}

void Engine::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

double Engine::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<SequenceId> Engine::submit(std::vector<Job> choices) {
  std::vector<SequenceId> ids;
  {
    const std::lock_guard lock(mutex_);
    for (Job& job : choices) {
      ids.push_back(next_id_++);
      if (stopped_) continue;
      inbox_.push_back({ids.back(), ids.size() > 1 ? ids[0] : 0, std::move(job), now()});
      idle_ = false;
    }
    if (!stopped_) choices.clear();
  }
  wake_.notify_all();
  for (const Job& job : choices) job.sink({.finish = Finish::kStopping});
  return ids;
}

void Engine::cancel(SequenceId id) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(id);
  wake_.notify_all();
}

void Engine::change(Change change, std::function<void(const Status&)> done) {
  std::unique_lock lock(mutex_);
  if (stopped_) {
    lock.unlock();
    return done(Error{ErrorKind::kCancelled, "", "change", "", "the server ends"});
  }
  wanted_.push_back({std::move(change), std::move(done)});
  wake_.notify_all();
}

void Engine::reload(std::string folder, std::function<void(const Status&)> done) {
  const auto read = [folder = std::move(folder)](Model& model, AdapterSlots&) -> Status {
    MORACLE_TRY(const Checkpoint checkpoint, Checkpoint::open(folder));
    return model.reload(checkpoint);
  };
  change(read, [this, done = std::move(done)](const Status& status) {
    metrics_.reload_ended(status.ok());
    done(status);
  });
}

bool Engine::drain(double seconds) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  wake_.notify_all();
  return drained_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return idle_; });
}

void Engine::run() {
  while (take_inbox()) {
    change_if_idle();
    step();
    publish();
  }
  refuse_left();
}

void Engine::refuse_left() {
  std::vector<SequenceId> left;
  for (const auto& [id, sequence] : sequences_) left.push_back(id);
  for (const SequenceId id : left) end(id, {.finish = Finish::kStopping});
  std::vector<Submitted> late;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    late.swap(inbox_);
    for (Wanted& wanted : wanted_) changes_.push_back(std::move(wanted));
    wanted_.clear();
  }
  for (const Submitted& each : late) each.job.sink({.finish = Finish::kStopping});
  for (const Wanted& wanted : changes_)
    wanted.done(Error{ErrorKind::kCancelled, "", "change", "", "the server ends"});
}

// Waits until there is something to do, and takes it. False: the engine ends.
bool Engine::take_inbox() {
  std::vector<Submitted> submitted;
  std::vector<SequenceId> cancelled;
  bool draining = false, stopping = false;
  {
    std::unique_lock lock(mutex_);
    const auto has_mail = [&] {
      return stopping_ || !inbox_.empty() || !cancelled_.empty() || !wanted_.empty();
    };
    if (sequences_.empty() && changes_.empty()) {
      if (!has_mail()) {
        idle_ = true;
        drained_.notify_all();
      }
      wake_.wait(lock, has_mail);
    }
    submitted.swap(inbox_);
    cancelled.swap(cancelled_);
    for (Wanted& wanted : wanted_) changes_.push_back(std::move(wanted));
    wanted_.clear();
    draining = draining_;
    stopping = stopping_;
  }
  for (Submitted& each : submitted) {
    if (draining || stopping)
      each.job.sink({.finish = Finish::kStopping});
    else
      admit(each.id, std::move(each.job), each.after, each.at);
  }
  for (const SequenceId id : cancelled) {
    const auto at = sequences_.find(id);
    if (at == sequences_.end()) continue;
    metrics_.request_ended("cancelled", now() - at->second.submitted);
    scheduler_.finish(id);
    pages_.drop(id);
    sequences_.erase(at);
  }
  return !stopping;
}

void Engine::admit(SequenceId id, Job&& job, SequenceId after, double submitted) {
  Submission submission{.id = id,
                        .prompt = job.prompt,
                        .max_tokens = job.max_tokens,
                        .adapter = job.adapter,
                        .scores_prompt = job.scores_prompt,
                        .after = after};
  if (job.time_limit > 0) submission.deadline = submitted + job.time_limit;
  const auto sink = job.sink;
  Result<Sequence> sequence = Sequence::make(std::move(job), tokenizer_);
  if (!sequence) return sink({.finish = Finish::kFailed, .message = sequence.error().to_string()});
  if (sequence->job.adapter >= 0 && !slots_.contains(sequence->job.adapter))
    return sink({.finish = Finish::kFailed, .message = "the adapter was unloaded"});
  const Admission admission = scheduler_.submit(std::move(submission));
  if (admission != Admission::kQueued) {
    const bool full = admission == Admission::kQueueFull;
    metrics_.request_ended(full ? "queue_full" : "too_long", now() - submitted);
    return sink({.finish = full ? Finish::kQueueFull : Finish::kTooLong});
  }
  sequence->submitted = submitted;
  sequences_.emplace(id, *std::move(sequence));
}

void Engine::change_if_idle() {
  scheduler_.pause(!changes_.empty());
  if (changes_.empty() || !scheduler_.is_idle()) return;
  const Wanted wanted = std::move(changes_.front());
  changes_.pop_front();
  // The cached pages hold results of the old weights.
  pages_.drop_pages(scheduler_.drop_cached());
  const Status done = or_out_of_memory("change", [&] { return wanted.change(model_, slots_); });
  end_without_adapter();
  wanted.done(done);
  scheduler_.pause(!changes_.empty());
}

void Engine::end_without_adapter() {
  std::vector<SequenceId> without;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.job.adapter >= 0 && !slots_.contains(sequence.job.adapter)) without.push_back(id);
  }
  for (const SequenceId id : without)
    end(id, {.finish = Finish::kFailed, .message = "the adapter was unloaded"});
}

void Engine::step() {
  const double start = now();
  StepPlan plan = scheduler_.next(start, std::max(budget_.tokens(), scheduler_.num_running()));
  apply(plan);
  if (plan.chunks.empty()) return;
  int64_t of_prompts = 0;
  for (const Chunk& chunk : plan.chunks) {
    const auto at = sequences_.find(chunk.id);
    if (at == sequences_.end()) continue;
    of_prompts += std::clamp<int64_t>(at->second.prompt_size() - chunk.first, 0, chunk.count);
  }
  drawn_in_step_ = 0;
  compute(plan.chunks);
  const double seconds = now() - start;
  budget_.measured(plan.num_tokens, seconds);
  metrics_.step(of_prompts, drawn_in_step_, seconds);
}

void Engine::apply(StepPlan& plan) {
  for (const SequenceId id : plan.expired) end(id, {.finish = Finish::kTimeout});
  for (const SequenceId id : plan.preempted) pages_.drop(id);
  pages_.drop_pages(plan.dropped);
  for (const StepPlan::Start& start : plan.starts) {
    Sequence& sequence = sequences_.at(start.id);
    const int64_t capacity = sequence.prompt_size() + std::max<int64_t>(sequence.job.max_tokens, 1);
    const auto shared = static_cast<int64_t>(start.pages.size());
    if (sequence.num_new() == 0) sequence.reused_tokens = shared * pages_.page();
    const Status made =
        pages_.start(start.id, std::min(capacity, model_.max_context()), start.pages);
    if (made) continue;
    end(start.id, {.finish = Finish::kFailed, .message = made.error().to_string()});
    std::erase_if(plan.chunks, [&](const Chunk& chunk) { return chunk.id == start.id; });
  }
}

// Computes chunks and draws. If the step fails, each chunk runs alone, so that one sequence's error
// does not end the others.
void Engine::compute(std::span<const Chunk> chunks) {
  const Turn turn = model_.device().turn();  // until the logits have been read
  const auto work = [&]() -> Status { return forward(chunks); };
  Status done = or_out_of_memory("step", work);
  if (!done) {
    if (chunks.size() == 1)
      return end(chunks[0].id, {.finish = Finish::kFailed, .message = done.error().to_string()});
    for (size_t i = 0; i < chunks.size(); ++i) compute(chunks.subspan(i, 1));
    return;
  }
  StepPlan computed;
  computed.chunks.assign(chunks.begin(), chunks.end());
  for (const Adoption& adoption : scheduler_.advance(computed)) pages_.adopt(adoption);
  done = score_prompts(chunks);
  if (done) done = draw_next(chunks);
  if (done) return;
  for (const Chunk& chunk : chunks) {
    if (sequences_.contains(chunk.id))
      end(chunk.id, {.finish = Finish::kFailed, .message = done.error().to_string()});
  }
}

Status Engine::forward(std::span<const Chunk> chunks) {
  std::vector<Model::Step> steps;
  for (const Chunk& chunk : chunks) {
    const Sequence& sequence = sequences_.at(chunk.id);
    steps.push_back({std::span(sequence.tokens).subspan(chunk.first, chunk.count),
                     &pages_.cache(chunk.id),
                     sequence.job.adapter < 0 ? -1 : slots_.at(sequence.job.adapter)});
  }
  return model_.forward(steps);
}

Status Engine::score_prompts(std::span<const Chunk> chunks) {
  int64_t row = 0;
  for (const Chunk& chunk : chunks) {
    Sequence& sequence = sequences_.at(chunk.id);
    // The logits of position p score the token at p + 1. A sequence that lost its pages comes here
    // again.
    auto& scores = sequence.prompt_scores;
    const int64_t last = std::min(chunk.first + chunk.count, sequence.prompt_size() - 1);
    auto position = std::max(chunk.first, static_cast<int64_t>(scores.size()));
    while (sequence.job.scores_prompt && position < last) {
      const int64_t count = std::min(Model::kMaxLogitRows, last - position);
      MORACLE_TRY(const std::span<const float> logits,
                  model_.logits(row + position - chunk.first, count));
      const auto vocab = static_cast<size_t>(model_.vocab_size());
      for (int64_t i = 0; i < count; ++i) {
        scores.push_back(scorer_.score(logits.subspan(i * vocab, vocab),
                                       sequence.tokens[position + i + 1], *sequence.job.num_top));
      }
      position += count;
    }
    row += chunk.count;
  }
  return {};
}

Status Engine::draw_next(std::span<const Chunk> chunks) {
  std::vector<SequenceId> together;  // consecutive rows, from `first` on
  int64_t row = 0, first = 0;
  const auto draw_those = [&]() -> Status {
    if (together.empty()) return {};
    const std::vector<SequenceId> ids = std::exchange(together, {});
    return draw_together(first, ids);
  };
  for (const Chunk& chunk : chunks) {
    row += chunk.count;
    if (!chunk.draws) continue;
    const Sequence& sequence = sequences_.at(chunk.id);
    if (sequence.job.max_tokens == 0) {
      end(chunk.id, {.finish = Finish::kLength});
      continue;
    }
    if (!sequence.is_plain()) {
      MORACLE_CHECK(draw_alone(row - 1, chunk.id));
      continue;
    }
    const auto count = static_cast<int64_t>(together.size());
    if (count == Model::kMaxLogitRows || first + count != row - 1) MORACLE_CHECK(draw_those());
    if (together.empty()) first = row - 1;
    together.push_back(chunk.id);
  }
  return draw_those();
}

Status Engine::draw_together(int64_t row, std::span<const SequenceId> ids) {
  std::vector<Sampler> samplers;
  for (const SequenceId id : ids) samplers.push_back(std::move(sequences_.at(id).sampler));
  std::vector<int32_t> tokens(ids.size());
  const Status drawn = draw(model_, row, samplers, tokens);
  for (size_t i = 0; i < ids.size(); ++i) sequences_.at(ids[i]).sampler = std::move(samplers[i]);
  MORACLE_CHECK(drawn);
  for (size_t i = 0; i < ids.size(); ++i) add_token(ids[i], tokens[i], {});
  return {};
}

Status Engine::draw_alone(int64_t row, SequenceId id) {
  Sequence& sequence = sequences_.at(id);
  MORACLE_TRY(const std::span<const float> logits, model_.logits(row, 1));
  std::span<const float> all = logits;
  if (!sequence.editor.changes_nothing()) {
    edited_.assign(logits.begin(), logits.end());
    sequence.editor.apply(edited_);
    all = edited_;
  }
  const int32_t token = sequence.sampler.draw(all).value_or(kNothingDrawn);
  std::vector<TokenScore> scores;
  if (sequence.job.num_top && token != kNothingDrawn)
    scores.push_back(scorer_.score(logits, token, *sequence.job.num_top));
  add_token(id, token, std::move(scores));
  return {};
}

void Engine::add_token(SequenceId id, int32_t token, std::vector<TokenScore> scores) {
  Sequence& sequence = sequences_.at(id);
  if (token == kNothingDrawn) {
    return end(id, {.finish = Finish::kFailed,
                    .message = str("the logits after position ", sequence.tokens.size() - 1,
                                   " are not finite")});
  }
  const double time = now();
  if (sequence.num_new() == 0)
    metrics_.first_token(time - sequence.submitted);
  else
    metrics_.next_token(time - sequence.last_token);
  sequence.last_token = time;
  ++drawn_in_step_;
  Result<Event> event = sequence.add(token);
  if (!event) return end(id, {.finish = Finish::kFailed, .message = event.error().to_string()});
  event->scores = std::move(scores);
  if (event->finish != Finish::kNone) return end(id, *std::move(event));
  scheduler_.append(id, token);
  if (sequence.num_new() == 1) {
    event->of_prompt = std::move(sequence.prompt_scores);
    sequence.job.scores_prompt = false;  // not again after a preemption
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
  const char* const outcome = event.finish == Finish::kStop       ? "stop"
                              : event.finish == Finish::kLength   ? "length"
                              : event.finish == Finish::kTimeout  ? "timeout"
                              : event.finish == Finish::kStopping ? "stopping"
                                                                  : "failed";
  metrics_.request_ended(outcome, now() - sequence.submitted);
  const auto sink = std::move(sequence.job.sink);
  scheduler_.finish(id);
  pages_.drop(id);
  sequences_.erase(at);
  sink(std::move(event));
}

void Engine::publish() {
  const int64_t cached = scheduler_.prefixes().num_unused();
  metrics_.set({.running = scheduler_.num_running(),
                .waiting = scheduler_.num_waiting(),
                .pages = num_pages_,
                .pages_in_use = num_pages_ - scheduler_.free_pages() - cached,
                .pages_cached = cached,
                .preemptions = scheduler_.num_preemptions(),
                .reused_tokens = scheduler_.num_reused_tokens(),
                .step_budget = budget_.tokens()});
}

}  // namespace moracle::serve
