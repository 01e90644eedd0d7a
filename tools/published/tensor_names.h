// The tensors of each published architecture, by the names and shapes in its authors' files.
#pragma once

#include <nlohmann/json.hpp>

#include "published/module_forms.h"

namespace moracle::published {

/// Adds the tensors of the model that config.json describes. Throws std::runtime_error for a
/// model_type without names here: add them.
void add_tensors(const Json& config, ModuleForms& forms);

}  // namespace moracle::published
