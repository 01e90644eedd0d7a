#include "serve/engine/engine.h"

#include <algorithm>
#include <chrono>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "models/decoder/model_state.h"

namespace moracle::serve {
namespace {

// Divides the KV cache into pages and states.
SchedulerLimits limits_of(Model& model, const EngineOptions& options, int64_t page_bytes) {
  const PageStore store(model);
  SchedulerLimits limits{.max_running = options.max_running,
                         .max_waiting = options.max_waiting,
                         .num_pages = options.cache_bytes / page_bytes,
                         .page = store.page(),
                         .prefix_cache = options.prefix_cache && store.can_share() &&
                                         (!model.group() || !spreads_sequences(model)),
                         .needs_states = store.is_recurrent()};
  if (!limits.prefix_cache) return limits;
  if (limits.needs_states) {
    constexpr int64_t kShare = 4, kMost = 1024;
    limits.num_states = std::min(options.cache_bytes / kShare / store.state_bytes(), kMost);
    limits.num_pages = (options.cache_bytes - limits.num_states * store.state_bytes()) / page_bytes;
    limits.state_slots = store.state_slots();
    if (limits.num_states == 0) limits.prefix_cache = false;
  }
  if (limits.prefix_cache) limits.ram_slots = options.cache_ram / store.page_bytes();
  return limits;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::start(Model& model, const Tokenizer& tokenizer,
                                              const EngineOptions& options) {
  // The caches of a layer for multi-token prediction grow with those of the model.
  Model* const next_tokens = ModelAccess::next_tokens(model);
  const int64_t page_bytes = PageStore(model).page_bytes() +
                             (next_tokens == nullptr ? 0 : PageStore(*next_tokens).page_bytes());
  if (options.cache_bytes < page_bytes) {
    return Error{ErrorKind::kInvalidArgument, "", "cache_bytes",
                 str("at least one page, ", page_bytes, " bytes"),
                 str("it is ", options.cache_bytes)};
  }
  if (options.max_running > model.max_num_tokens()) {
    return Error{ErrorKind::kInvalidArgument, "", "max_running",
                 str("at most the tokens of a step, ", model.max_num_tokens()),
                 str("it is ", options.max_running)};
  }
  MORACLE_CHECK(check(options.speculation));
  EngineOptions found = options;
  MORACLE_TRY(found.speculation.drafter, ModelAccess::drafter(model, options.speculation.drafter));
  const SchedulerLimits limits = limits_of(model, options, page_bytes);
  std::unique_ptr<Engine> engine(new Engine(model, tokenizer, found, limits));
  if (limits.ram_slots > 0) {
    MORACLE_CHECK(or_out_of_memory("cache_ram",
                                   [&] { return engine->leader_.reserve_ram(limits.ram_slots); }));
  }
  MORACLE_CHECK(engine->rebalancing_.check());
  engine->profiler_.watch(model);
  engine->thread_ = std::thread([e = engine.get()] { e->run(); });
  return engine;
}

Engine::Engine(Model& model, const Tokenizer& tokenizer, const EngineOptions& options,
               const SchedulerLimits& limits)
    : model_(model),
      tokenizer_(tokenizer),
      num_pages_(limits.num_pages),
      num_states_(limits.num_states),
      ram_slots_(limits.ram_slots),
      flush_(options.flush),
      leader_(model),
      scheduler_(limits),
      budget_(model.max_num_tokens(), options.step_seconds > 0 ? options.step_seconds : 1e9),
      rebalancing_(model, leader_, metrics_, options.rebalance),
      speculation_(options.speculation),
      overlaps_answers_(options.overlaps_answers) {
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
  Event last;
  {
    const std::lock_guard lock(mutex_);
    last.finish = Finish::kStopping;
    if (failure_) last.message = failure_->to_string();
    for (Job& job : choices) {
      ids.push_back(next_id_++);
      if (stopped_) continue;
      inbox_.push_back({ids.back(), ids.size() > 1 ? ids[0] : 0, std::move(job), now()});
      idle_ = false;
    }
    if (!stopped_) choices.clear();
  }
  wake_.notify_all();
  for (const Job& job : choices) job.sink(Event(last));
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
    const Error reason =
        failure_.value_or(Error{ErrorKind::kCancelled, "", "change", "", "the server is stopping"});
    lock.unlock();
    return done(reason);
  }
  change_requests_.push_back({std::move(change), std::move(done)});
  wake_.notify_all();
}

void Engine::retire_adapter(int32_t adapter) {
  const std::lock_guard lock(mutex_);
  retiring_.push_back(adapter);
  wake_.notify_all();
}

void Engine::reload(std::string folder, std::function<void(const Status&)> done) {
  const auto read = [folder = std::move(folder)](Leader& model, AdapterSlots&) {
    return model.reload(folder);
  };
  change(read, [this, done = std::move(done)](const Status& status) {
    metrics_.reload_ended(status.ok());
    done(status);
  });
}

void Engine::rebalance(Rebalancing::Done done) {
  std::unique_lock lock(mutex_);
  if (stopped_) {
    const Error reason = failure_.value_or(
        Error{ErrorKind::kCancelled, "", "rebalance", "", "the server is stopping"});
    lock.unlock();
    return done(reason);
  }
  rebalances_.push_back(std::move(done));
  wake_.notify_all();
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
    if (!leader_.lost()) step();
    move_experts();
    if (flush_) flush_();
    publish();
    profiler_.end("scheduling");
  }
  refuse_unfinished();
  leader_.end();
  if (flush_) flush_();
}

void Engine::move_experts() {
  if (leader_.lost() || !rebalancing_.is_running()) return;
  profiler_.end("scheduling");
  rebalancing_.move_next();
  profiler_.end("rebalance");
  metrics_.parts(profiler_.take());
}

void Engine::refuse_unfinished() {
  note_failure();
  std::vector<SequenceId> left;
  for (const auto& [id, sequence] : sequences_) left.push_back(id);
  for (const SequenceId id : left) end(id, last_event());
  std::vector<Submitted> late;
  std::vector<Rebalancing::Done> rebalances;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = idle_ = true;
    drained_.notify_all();
    late.swap(inbox_);
    for (ChangeRequest& request : change_requests_) changes_.push_back(std::move(request));
    change_requests_.clear();
    rebalances.swap(rebalances_);
  }
  const Error reason = leader_.lost().value_or(
      Error{ErrorKind::kCancelled, "", "rebalance", "", "the server is stopping"});
  rebalancing_.end(reason);
  for (const Rebalancing::Done& done : rebalances) done(reason);
  for (const Submitted& each : late) each.job.sink(last_event());
  for (const ChangeRequest& request : changes_) {
    request.done(leader_.lost().value_or(
        Error{ErrorKind::kCancelled, "", "change", "", "the server is stopping"}));
  }
}

Event Engine::last_event() const {
  Event event;
  event.finish = Finish::kStopping;
  if (leader_.lost()) event.message = leader_.lost()->to_string();
  return event;
}

void Engine::note_failure() {
  if (!leader_.lost()) return;
  const std::lock_guard lock(mutex_);
  failure_ = leader_.lost();
}

std::optional<Error> Engine::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool Engine::has_input() const {
  return stopping_ || !inbox_.empty() || !cancelled_.empty() || !change_requests_.empty() ||
         !retiring_.empty() || !rebalances_.empty();
}

// Waits for input. Also returns if a rank is lost.
void Engine::wait_for_input(std::unique_lock<std::mutex>& lock) {
  const auto there = [&] { return has_input(); };
  if (!leader_.has_followers()) return wake_.wait(lock, there);
  constexpr std::chrono::milliseconds kBetweenLooks{200};
  while (!wake_.wait_for(lock, kBetweenLooks, there) && !leader_.lost()) {
    lock.unlock();
    leader_.look();
    lock.lock();
  }
}

// Waits for work and takes all input. False: stop the engine.
bool Engine::take_inbox() {
  std::vector<Submitted> submitted;
  std::vector<SequenceId> cancelled;
  std::vector<int32_t> retiring;
  std::vector<Rebalancing::Done> rebalances;
  bool draining = false, stopping = false;
  {
    std::unique_lock lock(mutex_);
    if (sequences_.empty() && changes_.empty() && !rebalancing_.is_running() && !leader_.lost()) {
      if (!has_input()) {
        idle_ = true;
        drained_.notify_all();
      }
      wait_for_input(lock);
    }
    submitted.swap(inbox_);
    cancelled.swap(cancelled_);
    retiring.swap(retiring_);
    rebalances.swap(rebalances_);
    for (ChangeRequest& request : change_requests_) changes_.push_back(std::move(request));
    change_requests_.clear();
    draining = draining_;
    stopping = stopping_;
  }
  profiler_.start();
  for (Submitted& each : submitted) {
    if (draining || stopping) {
      metrics_.request_ended("stopping", now() - each.at);
      each.job.sink(last_event());
    } else {
      admit(each.id, std::move(each.job), each.after, each.at);
    }
  }
  if (!retiring.empty()) {
    retired_.insert(retiring.begin(), retiring.end());
    end_without_adapter();
  }
  for (const SequenceId id : cancelled) {
    const auto at = sequences_.find(id);
    if (at == sequences_.end()) continue;
    metrics_.request_ended("cancelled", now() - at->second.submitted);
    scheduler_.finish(id);
    leader_.drop(id);
    sequences_.erase(at);
  }
  for (Rebalancing::Done& done : rebalances) rebalancing_.request(std::move(done));
  return !stopping && !leader_.lost();
}

void Engine::admit(SequenceId id, Job&& job, SequenceId after, double submitted) {
  Submission submission{.id = id,
                        .prompt = job.prompt,
                        .max_tokens = job.max_tokens,
                        .adapter = job.adapter,
                        .salt = job.cache_salt,
                        .scores_prompt = job.scores_prompt,
                        .after = after};
  if (job.time_limit > 0) submission.deadline = submitted + job.time_limit;
  const auto sink = job.sink;
  Result<Sequence> sequence = Sequence::make(std::move(job), tokenizer_, model_.vocab_size());
  if (!sequence) {
    metrics_.request_ended("failed", now() - submitted);
    return sink({.finish = Finish::kFailed, .message = sequence.error().to_string()});
  }
  if (!has_adapter(sequence->job)) {
    metrics_.request_ended("unloaded", now() - submitted);
    return sink({.finish = Finish::kUnloaded});
  }
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
  if (changes_.empty() || !scheduler_.is_idle() || rebalancing_.is_running()) return;
  const ChangeRequest request = std::move(changes_.front());
  changes_.pop_front();
  // Invalidate the prefix cache: it holds keys and values of the old weights.
  move(scheduler_.drop_cached());
  const Status done = or_out_of_memory("change", [&] { return request.change(leader_, slots_); });
  std::erase_if(retired_, [&](int32_t adapter) { return !slots_.contains(adapter); });
  rebalancing_.model_changed();
  profiler_.watch(model_);
  profiler_.start();
  end_without_adapter();
  note_failure();
  request.done(done);
  scheduler_.pause(!changes_.empty());
}

bool Engine::has_adapter(const Job& job) const {
  return job.adapter < 0 || (slots_.contains(job.adapter) && !retired_.contains(job.adapter));
}

void Engine::end_without_adapter() {
  std::vector<SequenceId> without;
  for (const auto& [id, sequence] : sequences_) {
    if (!scheduler_.has_started(id) && !has_adapter(sequence.job)) without.push_back(id);
  }
  for (const SequenceId id : without) end(id, {.finish = Finish::kUnloaded});
}

void Engine::publish() {
  const int64_t cached = scheduler_.prefixes().num_unused();
  traffic_.ram_hits = leader_.pages().num_restored();
  traffic_.bytes_back = leader_.pages().bytes_restored();
  metrics_.set(
      {.running = scheduler_.num_running(),
       .waiting = scheduler_.num_waiting(),
       .pages = num_pages_,
       .pages_in_use = num_pages_ - scheduler_.free_pages() - cached,
       .pages_cached = cached,
       .preemptions = scheduler_.num_preemptions(),
       .reused_tokens = scheduler_.num_reused_tokens(),
       .step_budget = budget_.tokens(),
       .states = scheduler_.prefixes().num_states(),
       .most_states = num_states_,
       .ram_bytes = scheduler_.prefixes().ram_slots_in_use() * leader_.pages().page_bytes(),
       .most_ram_bytes = ram_slots_ * leader_.pages().page_bytes(),
       .traffic = traffic_,
       .placed = model_.placement_counts()});
}

}  // namespace moracle::serve
