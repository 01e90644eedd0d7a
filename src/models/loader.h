// Builds a model's modules from a Description, on one device. A later reload replaces the weights,
// all at once or not at all.
#pragma once

#include <vector>

#include "checkpoint/tensors/read_record.h"
#include "models/adapters/adapted_linear.h"
#include "models/plan.h"
#include "moracle/moe.h"
#include "moracle/placement.h"

namespace moracle {

class Loader {
 public:
  /// `modules` are the choices in the order of visit_modules; load() calls must use the same order.
  /// `progress` counts bytes of the checkpoint, up to `total_bytes`.
  Loader(std::shared_ptr<Workspace> workspace, std::vector<ModuleChoice> modules,
         AdapterSpan adapters, const Progress& progress, int64_t total_bytes)
      : workspace_(std::move(workspace)),
        modules_(std::move(modules)),
        adapters_(adapters),
        progress_(progress),
        total_(total_bytes) {}
  /// Makes a loader for modules that are already loaded.
  static Loader reload(std::shared_ptr<Workspace> workspace, const Progress& progress,
                       int64_t total_bytes) {
    Loader loader(std::move(workspace), {}, {}, progress, total_bytes);
    loader.reload_ = true;
    return loader;
  }

  Device& device() const { return workspace_->device(); }
  /// Counts the bytes that this rank reads of the checkpoint; experts have a sum of their own.
  /// `divided`: this rank reads its own share of attention and MLPs, too.
  void set_record(ReadRecord* record, bool divided) {
    record_ = record;
    divided_ = divided;
  }
  /// This rank reads its own share of the next matrix.
  void next_is_own() { next_is_own_ = true; }
  /// The adapter of each token of a step, in device memory: needed before a linear layer is loaded
  /// that adapters change.
  void set_lora_ids(const int32_t* lora_ids) { lora_ids_ = lora_ids; }

  /// Builds the module in `to`. In a reload: packs the new weights and keeps them aside until
  /// commit(), while the old weights keep serving. Errors: reading, memory, kCancelled; in a
  /// reload, weights of another layer or another number of values than loaded.
  Status load(std::optional<AdaptedLinear>& to, DescribedMatrix&& from);
  Status load(std::optional<FusedMoe>& to, DescribedWeights&& from);
  /// Experts in host memory and in slots of the device.
  Status load(std::optional<PlacedMoe>& to, DescribedWeights&& from);
  /// True if the next experts of a load() are placed like that.
  bool next_is_placed() const;
  /// The devices of such layers: needed before the first is loaded.
  void set_devices(std::shared_ptr<DevicePair> devices, bool deterministic) {
    devices_ = std::move(devices);
    deterministic_ = deterministic;
  }
  Status load(Buffer& to, const std::vector<float>& from);  ///< f32; empty if `from` is empty
  Status load(Buffer& to, const std::vector<int32_t>& from);
  Status load(Buffer& to, const std::vector<uint64_t>& from);
  /// Ends a reload: puts the weights that were kept aside in place. Errors: kCancelled by
  /// `progress`, before anything changes; of the device.
  Status commit() &&;

  /// Bytes of packed weights and adapters made so far.
  int64_t weight_bytes() const { return weight_bytes_; }
  /// Returns the choices, all of which must have been used. Errors: kCancelled by `progress`.
  Result<std::vector<ModuleChoice>> finish() &&;

 private:
  Result<const Selection*> next(const std::string& module);
  Progress step();
  // True while a module is read that has another share on each rank.
  class OwnReads;
  bool is_own(const std::string& part) const;
  Status done();
  template <class T>
  Status load_values(Buffer& to, const std::vector<T>& from);
  template <class Module, class Described>
  Status set_aside(Module& to, Described&& from);

  std::shared_ptr<Workspace> workspace_;
  std::vector<ModuleChoice> modules_;
  AdapterSpan adapters_;
  const int32_t* lora_ids_ = nullptr;
  std::shared_ptr<DevicePair> devices_;
  bool deterministic_ = false;
  const Progress& progress_;
  ReadRecord* record_ = nullptr;
  bool divided_ = false;
  bool next_is_own_ = false;
  size_t at_ = 0;
  bool reload_ = false;
  std::vector<std::function<Status()>> aside_;  // each function puts one module or buffer in place
  int64_t weight_bytes_ = 0;
  int64_t done_ = 0;
  int64_t total_ = 0;
  // Bytes of the running conversion that done_ already includes.
  int64_t counted_ = 0;
};

}  // namespace moracle
