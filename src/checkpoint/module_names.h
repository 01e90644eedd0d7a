// The names of one module in the classes that hold a language model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moracle {

/// `name` first, then the names that the other classes give to the same module: "model.layers.0" of
/// the text-only class is "model.language_model.layers.0" or "language_model.model.layers.0" of a
/// wrapper. Only `name` if it is not a name of a language model.
std::vector<std::string> module_names(const std::string& name);

}  // namespace moracle
