// Runs the model: one thread that takes jobs, asks the scheduler for a step, computes it, and draws
// the next tokens.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "serve/engine/leader.h"
#include "serve/engine/metrics.h"
#include "serve/engine/rebalancing.h"
#include "serve/engine/sequence.h"
#include "serve/engine/token_score.h"
#include "serve/scheduler/step_budget.h"

namespace moracle::serve {

/// From the adapter of a Job to its index in the model.
using AdapterSlots = std::map<int32_t, int32_t>;

struct EngineOptions {
  int64_t max_running = 64;   ///< sequences in one step
  int64_t max_waiting = 256;  ///< sequences in the queue
  int64_t cache_bytes = 0;    ///< as ModelOptions::cache_bytes; above 0
  bool prefix_cache = true;
  int32_t num_adapters = 0;  ///< of the model; jobs name them 0, 1, …
  /// A step runs while the texts of the one before are made. For devices that compute beside the
  /// host: on a CPU it would only delay the texts.
  bool overlaps_answers = false;
  RebalanceOptions rebalance{};
  double step_seconds = 0;        ///< target time of steps with prompts; 0: always max_num_tokens
  std::function<void()> flush{};  ///< called on the engine's thread when sinks may have been called
};

class Engine {
 public:
  /// Starts the thread. `model` and `tokenizer` must outlive the engine; other threads must not run
  /// the model. Errors: a cache without space for one page; a step that is smaller than
  /// max_running.
  static Result<std::unique_ptr<Engine>> start(Model& model, const Tokenizer& tokenizer,
                                               const EngineOptions& options);
  ~Engine() {
    stop();
    StepProfiler::unwatch(model_);
  }
  /// Ends the thread. Unfinished jobs get Finish::kStopping, and so do later ones.
  void stop();

  /// Submits the choices of one request. They have the same prompt, so the first computes it for
  /// all. Returns their ids. Every job gets a last event, unless it is cancelled.
  std::vector<SequenceId> submit(std::vector<Job> choices);
  /// Ends a job without an event. Unknown ids are ignored.
  void cancel(SequenceId id);
  /// Changes the model, once all running jobs are complete. New jobs wait, and fail if their
  /// adapter is gone. `change` and then `done` are called on the engine's thread. `change` gets the
  /// model, which must keep its sizes, and leaves it usable after an error.
  using Change = std::function<Status(Leader&, AdapterSlots&)>;
  void change(Change change, std::function<void(const Status&)> done);
  /// Ends the use of an adapter. Running texts are completed with it; jobs that have not started
  /// get Finish::kUnloaded. The next change that loads adapters frees its memory.
  void retire_adapter(int32_t adapter);
  /// Reads the weights of `folder` again. After an error the old weights stay in use.
  void reload(std::string folder, std::function<void(const Status&)> done);
  /// Moves experts between ranks by the load since the last decision. See Rebalancing.
  void rebalance(Rebalancing::Done done);
  /// Refuses new jobs. Returns true once all others are complete, false after `seconds`.
  bool drain(double seconds);
  /// Why the model cannot be used any more: another rank is lost. Unfinished jobs then get
  /// Finish::kStopping with this message, and so do later ones.
  std::optional<Error> failure() const;

  Metrics& metrics() { return metrics_; }
  /// Pages of the cache, and tokens per page.
  int64_t num_pages() const { return num_pages_; }
  int64_t page() const { return leader_.page(); }

 private:
  Engine(Model& model, const Tokenizer& tokenizer, const EngineOptions& options, int64_t num_pages);
  double now() const;
  void run();
  void refuse_unfinished();
  void wait_for_input(std::unique_lock<std::mutex>& lock);
  bool has_input() const;
  Event last_event() const;
  void note_failure();
  bool take_inbox();
  void admit(SequenceId id, Job&& job, SequenceId after, double submitted);
  void change_if_idle();
  void move_experts();
  bool has_adapter(const Job& job) const;
  void end_without_adapter();
  void step();
  void apply(StepPlan& plan);
  void compute(std::span<const Chunk> chunks);
  Status forward(std::span<const Chunk> chunks);
  Status score_prompts(std::span<const Chunk> chunks);
  Status sample_next(std::span<const Chunk> chunks);
  Status sample_row(int64_t row, SequenceId id);
  Status sample_rows(int64_t row, std::span<const SequenceId> ids);
  Status sample_from_all_logits(int64_t row, std::span<const SequenceId> ids);
  void take_token(SequenceId id, int32_t token, std::vector<TokenScore> scores);
  void answer(SequenceId id);
  void answer_sampled();
  void end(SequenceId id, Event&& event);
  void publish();

  struct Submitted {
    SequenceId id, after;
    Job job;
    double at;
  };
  struct ChangeRequest {
    Change change;
    std::function<void(const Status&)> done;
  };

  Model& model_;
  const Tokenizer& tokenizer_;
  const int64_t num_pages_;
  const std::function<void()> flush_;
  Leader leader_;  // the model, for everything that changes it or its caches
  Scheduler scheduler_;
  StepBudget budget_;
  Scorer scorer_;
  Metrics metrics_;
  Rebalancing rebalancing_;
  StepProfiler profiler_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::vector<float> edited_;  // logits of one token
  std::deque<ChangeRequest> changes_;
  AdapterSlots slots_;
  std::set<int32_t> retired_;  // adapters in slots_ that no new text may use
  const bool overlaps_answers_;
  std::vector<SequenceId> sampled_;  // have a last token without an answer
  int64_t sampled_in_step_ = 0;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable wake_, drained_;
  std::vector<Submitted> inbox_;
  std::vector<SequenceId> cancelled_;
  std::vector<ChangeRequest> change_requests_;
  std::vector<int32_t> retiring_;
  std::vector<Rebalancing::Done> rebalances_;
  SequenceId next_id_ = 1;
  std::optional<Error> failure_;
  bool stopping_ = false, stopped_ = false, draining_ = false, idle_ = true;

  std::thread thread_;
};

}  // namespace moracle::serve
