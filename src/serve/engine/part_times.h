// Where the time of steps goes: by part of the model, and by the backends that serve the part.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "moracle/model.h"

namespace moracle::serve {

/// Seconds by Prometheus' labels: part="experts",backend="cpu-avx512".
using PartSeconds = std::map<std::string, double>;

/// For one thread. Measures on a CPU only: a GPU runs its steps later, and as a whole.
class PartTimes {
 public:
  /// Watches the steps of `model`. Call it again after the model has changed.
  void watch(Model& model);
  /// Call it before this object ends.
  static void unwatch(Model& model);
  /// The next part begins now.
  void start() { last_ = Clock::now(); }
  /// A part ends now, and the next one begins.
  void end(std::string_view part);
  /// The times since the last call.
  PartSeconds take() { return std::exchange(seconds_, {}); }

 private:
  using Clock = std::chrono::steady_clock;
  const std::string& labels_of(std::string_view part);

  const Model* model_ = nullptr;                            // null: nothing is measured
  std::map<std::string, std::string, std::less<>> labels_;  // by part
  Clock::time_point last_;
  PartSeconds seconds_;
};

}  // namespace moracle::serve
