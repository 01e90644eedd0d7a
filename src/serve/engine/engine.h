// The serving engine: one thread runs the continuous batching loop. Each step admits jobs,
// schedules, runs the model and samples.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "serve/engine/metrics.h"
#include "serve/engine/ranks/leader.h"
#include "serve/engine/rebalancing.h"
#include "serve/engine/row_drawer.h"
#include "serve/scheduler/step_budget.h"

namespace moracle::serve {

/// Maps a Job's adapter number to the adapter's index in the model.
using AdapterSlots = std::map<int32_t, int32_t>;

struct EngineOptions {
  int64_t max_running = 64;   ///< batch size limit: sequences per step
  int64_t max_waiting = 256;  ///< queue limit
  /// KV cache size, as ModelOptions::cache_bytes; above 0. With recurrent layers and a prefix cache
  /// a quarter of it holds states at the ends of pages.
  int64_t cache_bytes = 0;
  bool prefix_cache = true;
  /// Host memory in bytes for pages and states that leave the KV cache; 0: they are dropped.
  int64_t cache_ram = 0;
  int32_t num_adapters = 0;  ///< adapters of the model; jobs use numbers 0, 1, …
  /// Overlap detokenization and replies of one step with the model's next step. For asynchronous
  /// devices; on a CPU it would only delay the replies.
  bool overlaps_answers = false;
  RebalanceOptions rebalance{};
  double step_seconds = 0;        ///< target time of a step with prefill; 0: always max_num_tokens
  Speculation speculation{};      ///< of every sequence
  std::function<void()> flush{};  ///< called on the engine's thread after a batch of sink calls
};

class Engine {
 public:
  /// Starts the thread. `model` and `tokenizer` must outlive the engine. No other thread may run
  /// the model. Errors: a cache smaller than one page; max_running above the tokens of a step.
  static Result<std::unique_ptr<Engine>> start(Model& model, const Tokenizer& tokenizer,
                                               const EngineOptions& options);
  ~Engine() {
    stop();
    StepProfiler::unwatch(model_);
  }
  /// Stops the thread. Unfinished and later jobs get Finish::kStopping.
  void stop();

  /// Submits the choices of one request. They share a prompt: the first one computes it, the others
  /// reuse its pages. Returns their ids. Each job ends with a last event unless it is cancelled.
  std::vector<SequenceId> submit(std::vector<Job> choices);
  /// Cancels a job without an event. Ignores unknown ids.
  void cancel(SequenceId id);
  /// Changes the model between jobs: running jobs finish first, new jobs wait. Calls `change`, then
  /// `done`, on the engine's thread. `change` must keep the model's sizes, and must leave the model
  /// usable after an error. Waiting jobs whose adapter is gone fail.
  using Change = std::function<Status(Leader&, AdapterSlots&)>;
  void change(Change change, std::function<void(const Status&)> done);
  /// Unloads an adapter. Running sequences finish with it; waiting jobs get Finish::kUnloaded. The
  /// next adapter change frees its memory.
  void retire_adapter(int32_t adapter);
  /// Reloads the weights from `folder`. After an error the old weights stay in use.
  void reload(std::string folder, std::function<void(const Status&)> done);
  /// Rebalances experts over the ranks by the load since the last decision. See Rebalancing.
  void rebalance(Rebalancing::Done done);
  /// Rejects new jobs and waits for the others. False: some are unfinished after `seconds`.
  bool drain(double seconds);
  /// Fatal error: another rank is lost and the model is unusable. All jobs then end with
  /// Finish::kStopping and this message.
  std::optional<Error> failure() const;

  Metrics& metrics() { return metrics_; }
  /// Number of KV cache pages, and tokens per page.
  int64_t num_pages() const { return num_pages_; }
  int64_t page() const { return leader_.page(); }

 private:
  // Rows of one sequence's logits: behind its last token, then behind each draft.
  struct SequenceRows {
    SequenceId id;
    int64_t row;     // within the rows that were read
    int64_t drafts;  // behind `row`
    int64_t accepted = 0;
  };
  // A sequence's rows of the last step: `count` tokens from `position` on.
  struct StepRows {
    SequenceId id;
    int64_t position, row, count;
  };
  // The decoding part of a step.
  struct DecodeLoad {
    int64_t sequences = 0, tokens = 0;  // tokens: drafts included
    bool is_all = true;                 // no prompt is computed
  };

  Engine(Model& model, const Tokenizer& tokenizer, const EngineOptions& options,
         const SchedulerLimits& limits);
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
  void move(std::span<const CacheMove> moves);
  void compute(std::span<const Chunk> chunks);
  Status forward(std::span<const Chunk> chunks);
  Status score_prompts(std::span<const Chunk> chunks);
  Status sample_next(std::span<const Chunk> chunks);
  Status sample_rows(int64_t first, std::vector<SequenceRows> sequences);
  int64_t candidates_of(std::span<const SequenceRows> sequences) const;
  Result<std::vector<DrawnToken>> draw_rows(const RowLogits& rows, int64_t first,
                                            std::span<const SequenceRows> sequences);
  bool take_drawn(SequenceRows& at, DrawnToken drawn);
  Result<RowLogits> read_rows(int64_t first, std::span<const SequenceRows> sequences);
  void prepare_masks(std::span<const Chunk> chunks);
  bool prepare_masks(std::vector<Sequence*> sequences);
  void on_all(int64_t count, const std::function<void(int64_t, RowDrawer&)>& work);
  void take_token(SequenceId id, int32_t token, std::vector<TokenScore> scores, bool is_draft);
  int64_t wanted_drafts(SequenceId id, const Sequence& sequence, int64_t sequences) const;
  Status request_drafts();
  Status draft_by_layer(const std::map<SequenceId, int64_t>& wanted);
  void keep_rows(std::span<const Chunk> chunks);
  DecodeLoad decode_load(const StepPlan& plan);
  Status settle_drafts(std::span<const Chunk> chunks);
  void note_drafts(const StepPlan& plan, const DecodeLoad& load, double seconds);
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
  const int64_t num_pages_, num_states_, ram_slots_;
  CacheTraffic traffic_;
  const std::function<void()> flush_;
  Leader leader_;  // the only access for calls that change the model or its caches
  Scheduler scheduler_;
  StepBudget budget_;
  Metrics metrics_;
  Rebalancing rebalancing_;
  StepProfiler profiler_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::vector<RowDrawer> drawers_;  // one per thread
  std::vector<uint32_t> allowed_;   // masks of a step's rows
  const Speculation speculation_;
  StepCosts costs_;
  std::vector<StepRows> last_rows_;  // while the model keeps their hidden states
  std::deque<ChangeRequest> changes_;
  AdapterSlots slots_;
  std::set<int32_t> retired_;  // adapters in slots_ that are closed to new jobs
  const bool overlaps_answers_;
  std::vector<SequenceId> sampled_;  // sequences with a sampled token that is not answered yet
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
