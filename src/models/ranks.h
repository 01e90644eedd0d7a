// A model on several ranks: the facts that they compare, and the exchange of their layers.
#pragma once

#include "models/decoder/model_state.h"
#include "models/plan.h"
#include "parallel/agreement.h"

namespace moracle {

class ThreadPool;

/// Errors: options.parallel has other numbers than the group, or more than one rank without one; a
/// map of experts.
Status check_ranks(const ModelOptions& options);
/// Files, options and adapters, and samples of all weights, before a weight is read whole.
std::vector<Fact> facts_before_loading(const Checkpoint& checkpoint, const ModelOptions& options,
                                       const Result<AdapterList>& adapters);
/// The backends, and the checksum of all weights that every rank has read.
std::vector<Fact> facts_after_loading(const Model::State& state, const ReadRecord& record);
/// The new weights of a reload, before they replace the old ones, or why this rank has none.
std::vector<Fact> facts_of_reload(const Checkpoint& checkpoint, const Status& done,
                                  const ReadRecord& record, ThreadPool& pool);
/// The files of a checkpoint and samples of its weights.
std::vector<Fact> facts_of_files(const Checkpoint& checkpoint, ThreadPool& pool);
/// What keys, values and states of a sequence depend on, besides the device.
std::vector<Fact> facts_of_sequences(const Checkpoint& checkpoint, const ModelOptions& options,
                                     const Result<AdapterList>& adapters);
/// The facts of facts_of_weights in `facts`, as one text.
std::string identity_of(std::span<const Fact> facts);
/// Makes the exchange, and the memory that layers share for it. Errors: none serves; memory.
Status join_ranks(Model::State& m, std::span<const ModuleChoice> modules,
                  const ModelOptions& options);

}  // namespace moracle
