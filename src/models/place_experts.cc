#include "models/place_experts.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "kernels/device/device_memory.h"
#include "layout/layout.h"
#include "oracle/backend.h"

namespace moracle {
namespace {

Status check_options(const ModelOptions& options, AdapterSpan adapters,
                     const ExpertWishes& wishes) {
  const auto refused = [](std::string need, std::string fact) {
    return Error{ErrorKind::kUnsupported, "", "device_memory", std::move(need), std::move(fact)};
  };
  if (options.device_memory < 0 || options.host_memory < 0) {
    return Error{ErrorKind::kInvalidArgument, "",
                 options.device_memory < 0 ? "device_memory" : "host_memory", "0 or more bytes",
                 "it is negative"};
  }
  if (options.group || options.parallel.ep_size > 1)
    return refused("one process", "ranks share the experts");
  if (wishes.lora_rank > 0) return refused("experts without adapters", "an adapter is assumed");
  for (const auto& adapter : adapters) {
    if (adapter->layers.empty()) continue;
    return refused("experts without adapters", "an adapter changes some");
  }
  if (wishes.format == ActivationFormat::kBatched)
    return refused("tokens with ids", "activations are batched");
  return {};
}

// Bytes of one expert in a slot of this layer.
int64_t slot_bytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const MatrixPlan& matrix : plan.matrices)
    bytes += static_cast<int64_t>(plan.backend->layout->sections(matrix.shape).bytes);
  return bytes;
}

}  // namespace

int64_t reserved_cache_bytes(const ModelPlan& plan, const ModelOptions& options,
                             int64_t max_context) {
  constexpr int64_t kTokens = 4096;
  if (options.cache_bytes > 0) return options.cache_bytes;
  return std::min(max_context, kTokens) * plan.cache_bytes_per_token;
}

Result<ExpertWishes> place_experts(const Description& description, const ModelOptions& options,
                                   const Machine& machine, AdapterSpan adapters,
                                   const ExpertWishes& wishes) {
  if (options.device_memory == 0) return wishes;
  MORACLE_CHECK(check_options(options, adapters, wishes));
  ExpertWishes placed = wishes;
  int64_t most = -1, of_all_layers = 0;
  // Workspaces depend on the number of slots, so that a guess may be too large.
  for (placed.num_slots = 0;;) {
    MORACLE_TRY(auto modules, consider(description, options, machine, adapters, placed));
    const auto served = [](const ModuleChoice& one) { return one.selection.plan.has_value(); };
    if (!std::all_of(modules.begin(), modules.end(), served)) return placed;  // the caller reports
    MORACLE_TRY(const ModelPlan plan, plan_memory(description, modules, options, machine));
    const int64_t memory = std::min(options.device_memory, plan.memory_bytes);
    const int64_t used =
        plan.total_bytes() + reserved_cache_bytes(plan, options, description.spec.max_context);
    if (*placed.num_slots == 0 && used > memory) {
      return Error{ErrorKind::kOutOfMemory, "", "plan",
                   str(used, " bytes of memory on ", name(options.device),
                       " for everything except experts, with caches (device_memory)"),
                   str("it is ", memory)};
    }
    if (most < 0) {
      int64_t num_experts = kMaxLayerSize;
      for (const ModuleChoice& module : modules) {
        if (module.part != "experts") continue;
        of_all_layers += slot_bytes(*module.selection.plan);
        num_experts = std::min(num_experts, module.selection.plan->layer.num_experts);
      }
      if (of_all_layers == 0) return wishes;  // no layer has experts
      most = std::min(num_experts, (memory - used) / of_all_layers);
      if (most == 0) return placed;
      placed.num_slots = most;
      continue;
    }
    if (used <= memory || *placed.num_slots == 0) return placed;
    const int64_t over = (used - memory + of_all_layers - 1) / of_all_layers;
    placed.num_slots = std::max<int64_t>(*placed.num_slots - over, 0);
  }
}

PolicyOptions policy_of(int64_t slot_bytes, double move_us) {
  constexpr double kHostBytesPerUs = 50'000, kSlotBytesPerUs = 1'000'000;
  const auto bytes = static_cast<double>(slot_bytes);
  PolicyOptions options;
  options.costs = {.host_us = bytes / kHostBytesPerUs,
                   .slot_us = bytes / kSlotBytesPerUs,
                   .move_us = move_us,
                   .bytes = slot_bytes};
  return options;
}

}  // namespace moracle
