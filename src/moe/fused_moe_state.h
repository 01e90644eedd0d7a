// State of one layer's experts after make.
#pragma once

#include "kernels/fused_experts.h"
#include "kernels/grouped_linear.h"
#include "moracle/moe.h"
#include "oracle/backend.h"

namespace moracle {

struct FusedMoe::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  Plan plan;
  std::shared_ptr<Workspace> workspace;
  std::unique_ptr<GroupedLinear> w13;
  std::unique_ptr<GroupedLinear> w2;
  std::vector<std::unique_ptr<FusedExperts>> fused;  // in the order of the plan
  Buffer expert_map;          // i32 [num_experts]; empty if the map is the identity
  Buffer adapters_buffer;     // zeroed: an unset adapter adds nothing
  AdapterScratch adapters{};  // in adapters_buffer
  int error_scope = 0;        // late errors of the device name this layer

  Device& device() const { return workspace->device(); }
  /// The kernels for the layer as a whole that run so many tokens; null: those of the matrices do.
  FusedExperts* fused_for(int64_t num_tokens) const;
  /// FusedMoe::make and FusedMoe::pack, without the handling of standard-library exceptions. `old`:
  /// see MoeAccess::make_moved.
  static Result<FusedMoe> make(DescribedWeights&& weights, const Selection& selection,
                               std::shared_ptr<Workspace> workspace, const Progress& progress,
                               const State* old = nullptr);
  /// Makes the kernels of `packed`, w13 and w2, and the rest of a layer that has a plan and a
  /// workspace.
  static Result<FusedMoe> finish(std::unique_ptr<State> state, std::vector<KernelWeights> packed);
  Result<PackedWeights> pack(DescribedWeights&& weights, const Progress& progress) const;
  static PackedWeights packed(std::unique_ptr<PackedWeights::State> state);
  static PackedWeights::State* state_of(const PackedWeights& weights);  // null: consumed
  /// Enqueues a call. Errors: see FusedMoe::apply.
  Status run(ExpertsCall call, Stream stream) const;

 private:
  class Pass;
};

struct PackedWeights::State {
  LayerSpec layer;
  ExpertMap experts;
  const Backend* backend = nullptr;
  std::string device;                           // device name
  std::vector<KernelWeights> matrices;          // w13 and w2, or a linear layer's only one
  std::unique_ptr<DescribedWeights> described;  // experts that are read later; then no matrices
};

}  // namespace moracle
