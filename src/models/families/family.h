// A model family: everything that one of the files here says about its checkpoints.
#pragma once

#include <string_view>

#include "checkpoint/experts/convention.h"
#include "models/description.h"

namespace moracle {

struct Family {
  std::string_view architecture;  ///< config.json's architectures[0]
  std::string_view also = {};     ///< another name of the same files; empty: none
  /// Its name in files that wrap the language model for images; empty: there are none.
  std::string_view multimodal = {};
  /// transformers saves the files under the class `saved_as` of another family, which computes
  /// them; model_type tells them apart. Empty: under `architecture`.
  std::string_view saved_as = {}, model_type = {};
  /// For docs/models.md: the models with this architecture, and what a user must know about them.
  std::string_view models, notes;
  /// Maps names and config to a Description. Errors: a missing tensor, a key that is not supported.
  /// Null: only the experts can be used.
  Result<Description> (*describe)(const Checkpoint& checkpoint) = nullptr;
  ExpertConvention experts = {};

  bool is(std::string_view name) const {
    return name == architecture || (!also.empty() && name == also) ||
           (!multimodal.empty() && name == multimodal);
  }
};

#define X(family) extern const Family family;
#include "models/families/families.inc"
#undef X

/// All of them.
std::span<const Family* const> families();

}  // namespace moracle
