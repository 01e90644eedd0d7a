// Makes a choice for every module of a Description. Load uses the choices; a dry run shows them.
#pragma once

#include <optional>
#include <vector>

#include "models/adapters/adapted_rows.h"
#include "models/description.h"
#include "moracle/model.h"

namespace moracle {

/// One choice of the oracle, for one module.
struct ModuleChoice {
  std::string part;
  std::optional<int64_t> layer;
  Selection selection;                    ///< has a plan if `choose` made it
  std::vector<AdaptedRows> adapted = {};  ///< of a linear layer
};

/// What an adapter changes of experts, or of a dense MLP or shared expert, as one expert. Empty if
/// it changes nothing. `part` as in ModuleLabel.
LoraWeights adapter_of(const LoraAdapter& adapter, const std::string& part,
                       std::optional<int64_t> layer, const DescribedWeights& weights);

/// Further requirements on the experts of a model.
struct ExpertWishes {
  ActivationFormat format = ActivationFormat::kStandard;
  int64_t lora_rank = 0;  ///< rank of assumed adapters, for explain
  /// Slots of each layer on the device (place_experts). Every layer with experts then has a second
  /// choice before its own, kHostExperts: all of its experts on the CPU. None: all experts lie on
  /// the device.
  std::optional<int64_t> num_slots = {};
  /// With slots: experts of a layer whose memory calls with many tokens fill (PlacedMoe::stream).
  /// If not 0, every layer has a third choice, kStreamedExperts, between the two.
  int64_t num_streamed = 0;
  /// With slots: experts of each layer that host memory holds; files have the others
  /// (PlacedMoe::make_from_files). None: all of them.
  std::optional<int64_t> num_on_host = {};
  /// With slots: those of each layer on each of options.slot_devices; empty: none there. Every
  /// layer has a choice for each of these devices, kOtherExperts and its name, before its own.
  std::vector<int64_t> other_slots = {};
};
/// The parts of such choices.
inline constexpr const char* kHostExperts = "experts in host memory";
inline constexpr const char* kStreamedExperts = "experts of long steps";
inline constexpr const char* kOtherExperts = "experts on ";
inline bool is_on_other(const ModuleChoice& choice) {
  return choice.part.starts_with(kOtherExperts);
}

/// True for a choice kHostExperts of fewer experts than this process has.
bool reads_files(const Selection& on_host);

/// Opens options.adapters, and adds options.read_adapters. Errors: as LoraAdapter::open.
Result<AdapterList> open_adapters(const Checkpoint& checkpoint, const ModelOptions& options);

/// The tokens of a step: those of the options, or what suits the device.
int64_t tokens_per_step(const ModelOptions& options);

/// The tokens of one call of the experts: also those of other ranks, where they are dispatched.
int64_t expert_tokens_per_step(const ModelOptions& options);

/// True if ranks sum each slot by itself, for the bits of one process (see ReplicatedMoe).
bool needs_slots(const ModelOptions& options);

/// Queries the oracle about every module, in the order of visit_modules, which is the load order.
/// Experts that any of `adapters` changes get memory for all adapters. A module that nothing serves
/// has a selection without a plan. Errors: options; a pattern of `backend` that matches nothing, or
/// only some of the modules that are multiplied together; an adapter of a module that no adapter
/// can change here.
Result<std::vector<ModuleChoice>> consider(const Description& description,
                                           const ModelOptions& options, const Machine& machine,
                                           AdapterSpan adapters = {},
                                           const ExpertWishes& wishes = {});
/// Same for only the experts of some layers.
using LayerExperts = std::pair<int64_t, DescribedWeights>;
Result<std::vector<ModuleChoice>> consider(std::span<const LayerExperts> experts,
                                           const ModelOptions& options, const Machine& machine,
                                           AdapterSpan adapters = {},
                                           const ExpertWishes& wishes = {});
/// As consider. Further errors: the first module that nothing serves, with the trail.
Result<std::vector<ModuleChoice>> choose(const Description& description,
                                         const ModelOptions& options, const Machine& machine,
                                         AdapterSpan adapters = {});
/// Memory of the whole model, without the choices. Errors: more memory than the device has;
/// options.
Result<ModelPlan> plan_memory(const Description& description, std::span<const ModuleChoice> modules,
                              const ModelOptions& options, const Machine& machine);
/// Chooses for every module and plans the memory. Errors: those of choose and plan_memory.
Result<ModelPlan> plan(const Description& description, const ModelOptions& options,
                       const Machine& machine, AdapterSpan adapters = {});
/// The options with which the layer for multi-token prediction is loaded.
ModelOptions next_token_options(const ModelOptions& options);
/// Groups the choices of equal layers with equal requests.
std::vector<Choice> grouped(std::vector<ModuleChoice> modules);

}  // namespace moracle
