// Changes of a served model. Every rank that holds the model makes the same ones.
#pragma once

#include "moracle/model.h"

namespace moracle::serve {

/// Reads the weights of `folder` again. After an error the old weights stay in use, on every rank.
Status read_weights(Model& model, const std::string& folder);

/// Loads the model of `folder` once more, with other options, and puts it in the place of `model`.
/// Memory holds both meanwhile. After an error the old model stays in use.
Status load_again(Model& model, const std::string& folder, const ModelOptions& options);

}  // namespace moracle::serve
