// Moves experts of a loaded model between its ranks, layer by layer, between two steps. Sequences
// continue, because the weights stay the same.
#pragma once

#include <map>
#include <set>
#include <span>
#include <vector>

#include "models/description.h"
#include "moracle/model.h"
#include "moracle/moe.h"

namespace moracle {

/// The experts of each rank, by layer. `model` has ranks.
Result<std::map<int64_t, std::vector<ExpertMap>>> placement(Model& model);

/// Model::routing_statistics of all ranks, also where each rank counts its own tokens; then every
/// rank calls it. Errors: those of the group; a rank that does not count.
Result<RoutingStatistics> routing_of_all_ranks(Model& model);

class ExpertMoves {
 public:
  /// Every rank of the model calls it, with its own folder of the checkpoint. Errors, the same on
  /// every rank: a model without ranks or with adapters; the first rank whose folder cannot be
  /// opened, or does not have the weights that the model has, as far as samples show.
  static Result<ExpertMoves> open(Model& model, const std::string& folder);

  /// Every rank calls it with the maps of all ranks, between the same two steps, and once for a
  /// layer. Each reads the experts that it gets and packs them beside the old ones; when all ranks
  /// have done so, the new ones take their place. Memory holds the experts of this layer twice
  /// meanwhile. Errors, the same on every rank, after which all ranks have the old experts: maps
  /// that do not fit; the first rank that cannot read, with its number. Errors of the group.
  Status move(int64_t layer, std::span<const ExpertMap> ranks);

 private:
  ExpertMoves(Model& model, Checkpoint&& checkpoint, Description&& description)
      : model_(&model),
        checkpoint_(std::move(checkpoint)),
        description_(std::move(description)),
        machine_(Machine::here()) {}
  Result<FusedMoe> read(int64_t layer, const ExpertMap& own);

  Model* model_;
  Checkpoint checkpoint_;
  Description description_;
  const Machine machine_;
  std::set<int64_t> consumed_;  // layers of the description
};

}  // namespace moracle
