// Changes of a served model. Every rank that holds the model makes the same ones.
#pragma once

#include "moracle/model.h"

namespace moracle::serve {

/// Reads the weights of `folder` again. After an error the old weights stay in use, on every rank.
Status read_weights(Model& model, const std::string& folder);

/// A new adapter of a served model, beside those that it keeps.
struct AdapterChange {
  std::vector<int64_t> kept;  ///< the numbers of ModelOptions::read_adapters, in that order
  int64_t id = 0;             ///< the number of the new one, which becomes the last
  std::string folder;         ///< of its files,
  std::string inside;         ///< which must not leave this folder by links
};

/// Loads the model of `folder` once more, with options.read_adapters and a new adapter, and puts it
/// in the place of `model`. Returns the new adapter. Memory holds both models meanwhile. Errors:
/// the model's files have changed since they were read; those of LoraAdapter::open and Model::load.
/// After an error the old model stays in use.
Result<std::shared_ptr<const LoraAdapter>> load_again(Model& model, const std::string& folder,
                                                      ModelOptions options,
                                                      const AdapterChange& change);

}  // namespace moracle::serve
