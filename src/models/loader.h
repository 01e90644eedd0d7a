// Makes what a model computes with from what a Description names, on one device.
#pragma once

#include <vector>

#include "models/plan.h"
#include "moracle/moe.h"

namespace moracle {

class Loader {
 public:
  /// `modules` are the choices in the order of visit_modules, in which the modules must come.
  /// `progress` counts bytes of the checkpoint, up to `total_bytes`.
  Loader(std::shared_ptr<Workspace> workspace, std::vector<ModuleChoice> modules,
         std::span<const LoraAdapter> adapters, const Progress& progress, int64_t total_bytes)
      : workspace_(std::move(workspace)),
        modules_(std::move(modules)),
        adapters_(adapters),
        progress_(progress),
        total_(total_bytes) {}

  Device& device() const { return workspace_->device(); }
  Result<Linear> linear(DescribedMatrix&& weights);
  Result<FusedMoe> experts(DescribedWeights&& weights);
  /// A copy on the device; of nothing an empty buffer.
  Result<Buffer> upload(const std::vector<float>& values);

  /// Packed weights and adapters made so far.
  int64_t weight_bytes() const { return weight_bytes_; }
  /// The choices, all of which must have been used. Errors: kCancelled by `progress`.
  Result<std::vector<ModuleChoice>> finish() &&;

 private:
  Result<const Selection*> next(const std::string& module);
  Progress step();

  std::shared_ptr<Workspace> workspace_;
  std::vector<ModuleChoice> modules_;
  std::span<const LoraAdapter> adapters_;
  const Progress& progress_;
  size_t at_ = 0;
  int64_t weight_bytes_ = 0;
  int64_t done_ = 0;
  int64_t total_ = 0;
  // Bytes of the running conversion that are already in done_.
  int64_t counted_ = 0;
};

}  // namespace moracle
