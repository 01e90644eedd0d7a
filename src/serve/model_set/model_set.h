// The models of a server. One is always in memory, or several are loaded at their first use and
// unloaded by least recent use.
#pragma once

#include <condition_variable>
#include <deque>
#include <thread>

#include "serve/model_set/running_model.h"

namespace moracle::serve {

/// A model with its weights.
struct LoadedWeights {
  ServedModel served;
  Model model;
  RunningOptions options;
};

/// A model that is loaded when a request names it.
struct ModelSource {
  std::string name;
  /// Memory of the loaded model, from its plan. Errors: those of the plan.
  std::function<Result<int64_t>()> bytes;
  /// Loads the weights. Returns kCancelled soon after `is_cancelled` is true.
  std::function<Result<LoadedWeights>(const std::function<bool()>& is_cancelled)> load;
};

/// Thread-safe.
class ModelSet {
 public:
  static constexpr size_t kMaxWaiting = 256;  ///< requests that wait for one model

  /// `shared` must outlive the set. `max_bytes`: memory limit of the loaded sources together.
  explicit ModelSet(SharedState& shared, int64_t max_bytes = 0)
      : shared_(shared), max_bytes_(max_bytes) {}
  ~ModelSet() { stop(); }

  /// Adds a model that stays in memory. It is then the only one.
  void keep(std::unique_ptr<RunningModel> model);
  /// Adds sources, and starts the thread that loads them. The first one is the default.
  void add(std::vector<ModelSource> sources);

  using Work = std::function<void(ModelApi&, const std::shared_ptr<Exchange>&)>;
  /// Runs `work` with a model, at once or on the loading thread. `name`: of the model or an
  /// adapter; empty: the default. The model stays in memory until `work` drops its exchange. Errors
  /// go to `exchange`: an unknown name; a model that does not load; too many waiting requests.
  void use(const std::string& name, std::shared_ptr<Exchange> exchange, ErrorForm form, Work work);

  /// True if the model is always in memory: a request's name is then checked by its ModelApi.
  bool keeps_one() const { return kept_ != nullptr; }
  /// Entries of /v1/models, of one name if it is given. Empty: no such name.
  Json describe(const std::string& name = {}) const;
  std::string metrics() const;
  std::string explanation() const;
  /// Names for messages.
  std::string names() const;
  /// See Engine::failure.
  std::optional<Error> failure() const;
  /// Rejects new jobs, and waits for running ones. False: some are unfinished after `seconds`.
  bool drain(double seconds);
  /// Stops all engines. Waiting requests get status 503.
  void stop();
  /// Destroys the models. Call when no exchange is left.
  void clear();

 private:
  enum class State { kUnloaded, kQueued, kLoading, kLoaded, kClosing };
  struct Waiting {
    std::shared_ptr<Exchange> exchange;
    ErrorForm form;
    Work work;
  };
  struct Entry {
    ModelSource source;
    State state = State::kUnloaded;
    std::optional<Model> model{};
    std::unique_ptr<RunningModel> running{};  // ends before the model
    int64_t bytes = 0, uses = 0;
    uint64_t last_use = 0;
    std::vector<Waiting> waiting{};
  };
  class Lease;
  class LeasedExchange;

  Entry* find(const std::string& name);
  void run();
  void load(Entry& entry);
  Status make_space(int64_t bytes);
  void close(Entry& entry, std::unique_lock<std::mutex>& lock);
  void refuse_waiting(Entry& entry, const ApiError& error);
  std::shared_ptr<Exchange> lease(Entry& entry, std::shared_ptr<Exchange> exchange);
  void release(Entry& entry);

  SharedState& shared_;
  const int64_t max_bytes_;
  std::unique_ptr<RunningModel> kept_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<Entry> entries_;  // addresses stay
  std::deque<Entry*> queue_;   // to load
  uint64_t clock_ = 0;
  bool stopping_ = false, draining_ = false;
  std::thread thread_;
};

}  // namespace moracle::serve
