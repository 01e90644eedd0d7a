// How many experts of each layer lie in slots of the device, by its memory.
#pragma once

#include "models/plan.h"
#include "moracle/placement.h"

namespace moracle {

/// Puts numbers in place of kFreeMemory. Errors: those of free_memory.
Status set_free_memory(ModelOptions& options, const Machine& machine);

/// `wishes` with the number of slots that options.device_memory leaves: attention, dense layers,
/// shared experts, routers, activations and caches come first. Every layer has the same number.
/// Without device_memory: `wishes` as they are. Errors: options that exclude slots; memory that
/// does not hold the rest of the model.
Result<ExpertWishes> place_experts(const Description& description, const ModelOptions& options,
                                   const Machine& machine, AdapterSpan adapters,
                                   const ExpertWishes& wishes);

/// Bytes of host memory that experts may take.
int64_t host_memory_of(const ModelOptions& options, const Machine& machine);

/// Bytes of the caches that a plan within device_memory leaves room for: options.cache_bytes, or an
/// eighth of it, but at least those of 4,096 tokens and at most those of one whole context, or of
/// options.cached_tokens if these are more.
int64_t reserved_cache_bytes(const ModelPlan& plan, const ModelOptions& options,
                             int64_t max_context);

}  // namespace moracle
