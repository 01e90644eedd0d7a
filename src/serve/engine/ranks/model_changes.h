// Changes of a served model. All ranks run the same ones.
#pragma once

#include "moracle/model.h"

namespace moracle::serve {

/// Reloads the weights from `folder`. After an error the old weights stay in use on all ranks.
Status read_weights(Model& model, const std::string& folder);

/// Adds one adapter to a served model.
struct AdapterChange {
  std::vector<int64_t> kept;  ///< adapters that stay, in the order of ModelOptions::read_adapters
  int64_t id = 0;             ///< number of the new adapter, which becomes the last
  std::string folder;         ///< folder of its files
  std::string inside;         ///< folder that its resolved path must be inside of
};

/// Loads a second copy of the model with options.read_adapters and a new adapter, and replaces
/// `model`. Returns the new adapter. Both copies are in memory until then. Errors: the model's
/// files have changed on disk; errors of LoraAdapter::open and Model::load. After an error the old
/// model stays in use.
Result<std::shared_ptr<const LoraAdapter>> load_again(Model& model, const std::string& folder,
                                                      ModelOptions options,
                                                      const AdapterChange& change);

}  // namespace moracle::serve
