#include "checkpoint/module_names.h"

#include <span>

#include "base/text.h"

namespace moracle {

std::vector<std::string> module_names(const std::string& name) {
  // Test the text-only class last: the wrappers' prefixes begin with its prefix, too.
  constexpr std::string_view kRoots[] = {"model.language_model.", "language_model.model.", "model.",
                                         "backbone."};
  constexpr std::string_view kOutputs[] = {"language_model.lm_head", "lm_head"};
  std::vector<std::string> names = {name};
  for (const std::span<const std::string_view> classes :
       {std::span<const std::string_view>(kRoots), std::span<const std::string_view>(kOutputs)}) {
    for (const std::string_view prefix : classes) {
      if (!name.starts_with(prefix)) continue;
      for (const std::string_view other : classes) {
        if (other != prefix) names.push_back(str(other, name.substr(prefix.size())));
      }
      return names;
    }
  }
  return names;
}

}  // namespace moracle
