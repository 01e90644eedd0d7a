// Where the time of steps goes: by part of the model, and by the backends that serve the part.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moracle/model.h"

namespace moracle::serve {

/// Seconds by Prometheus' labels: part="experts",backend="cpu-avx512".
using PartSeconds = std::map<std::string, double>;

/// For one thread. On a CPU the parts of every step are timed. Another device runs a step later and
/// as a whole, so one step of kSampled is enqueued part by part and timed with the device's clock;
/// its times count kSampled times. The host's own parts are timed in every step.
class StepProfiler {
 public:
  static constexpr int64_t kSampled = 128;

  /// Watches the steps of `model`. Call it again after the model has changed.
  void watch(Model& model);
  /// Call it before this object ends.
  static void unwatch(Model& model);
  /// The next part begins now.
  void start() { last_ = Clock::now(); }
  /// A part on the host ends now, and the next one begins.
  void end(std::string_view part);

  void begin_step();
  /// The host has enqueued the step. On a CPU it is then done, part by part.
  void enqueued() {
    if (!is_cpu_) end("enqueueing");
  }
  /// A part on the device ends now. The host's next part begins.
  void end_on_device(std::string_view part);
  void end_step();
  /// The times since the last call.
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

  // The step that a device times.
  int64_t num_steps_ = 0;
  bool is_sampled_ = false;
  std::unique_ptr<Timeline> timeline_;  // null: none yet, or the device has none
  std::vector<std::string> marked_;     // parts in the order of their ends
};

}  // namespace moracle::serve
