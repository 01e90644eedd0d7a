// Formats plans as JSON and as text.
#pragma once

#include "command.h"
#include "oracle/selection_json.h"

namespace moracle::cli {

/// Name of the backend, with the required build if this build lacks it.
std::string backend_text(const Backend& backend);

/// One line per entry of Checkpoint::not_used().
std::string not_used_text(const Checkpoint& checkpoint);
/// One line per entry of GenerationConfig::not_followed.
std::string not_followed_text(const GenerationConfig& config);

/// How 4-bit weights beside fp8 activations lie in memory, the bytes of both ways, times and the
/// reason; empty and null without a choice.
std::string residency_text(const std::optional<ResidencyPlan>& residency);
Json residency_json(const std::optional<ResidencyPlan>& residency);

/// Prints the backends of a loaded model on stderr, one line per group of equal layers, then the
/// residency of its weights and the unused parts of its checkpoint.
void show_choices(const Model& model, const Checkpoint& checkpoint);
/// Prints a model's plan: one line per group of equal layers, then the sums.
void show(const ModelPlan& plan, const MemoryRates& rates = {});
/// Where experts of `choices` lie if not all are on the device, and the estimate; else empty.
/// `rates` are those of the plan.
std::string placement_text(const ModelPlan& plan, const std::vector<Choice>& choices,
                           const MemoryRates& rates);
/// {"num_slots", "num_on_host", "host_bytes", "device_bytes", "estimate"}; null without slots.
Json placement_json(const ModelPlan& plan);
Json to_json(const ModelPlan& plan);

}  // namespace moracle::cli
