// Profiles steps: seconds by part of the model and by the backends that serve it.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moracle/model.h"

namespace moracle::serve {

/// Seconds by Prometheus labels: part="experts",backend="cpu-avx512".
using PartSeconds = std::map<std::string, double>;

/// Not thread-safe. A CPU times the parts of every step. An asynchronous device runs a step as a
/// whole, so one step in kSampled is enqueued part by part and timed with device events; its times
/// count kSampled times. The host's parts are timed in every step.
class StepProfiler {
 public:
  static constexpr int64_t kSampled = 128;

  /// Starts profiling `model`. Call again after the model has changed.
  void watch(Model& model);
  /// Call before this object is destroyed.
  static void unwatch(Model& model);
  /// Starts the clock of the next part.
  void start() { last_ = Clock::now(); }
  /// Ends a host part and starts the next one.
  void end(std::string_view part);

  void begin_step();
  /// Call after the step is enqueued. On a CPU the step is complete by then, and its parts are
  /// timed.
  void enqueued() {
    if (!is_cpu_) end("enqueueing");
  }
  /// Ends a device part and starts the next host part.
  void end_on_device(std::string_view part);
  void end_step();
  /// Returns the seconds since the last call.
  PartSeconds take() { return std::exchange(seconds_, {}); }

 private:
  using Clock = std::chrono::steady_clock;
  const std::string& labels_of(std::string_view part);
  void mark(std::string_view part);

  Model* model_ = nullptr;
  bool is_cpu_ = false;
  std::map<std::string, std::string, std::less<>> labels_;  // by part
  Clock::time_point last_;
  PartSeconds seconds_;

  // The step that the device times.
  int64_t num_steps_ = 0;
  bool is_sampled_ = false;
  std::unique_ptr<Timeline> timeline_;  // null: not created yet, or not supported
  std::vector<std::string> marked_;     // ended parts, in order
};

}  // namespace moracle::serve
