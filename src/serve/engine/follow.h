#pragma once

#include "moracle/model.h"

namespace moracle::serve {

/// Runs what rank 0's Engine orders, until it ends. `folder` and `options` are those with which
/// `model` was loaded; `folder` is read again when rank 0 reloads its own. Errors: another rank
/// ended, hangs or stopped; work that failed here and not on rank 0. The caller must then end its
/// part of the group (Group::abort).
Status follow(Model& model, const std::string& folder, const ModelOptions& options);

}  // namespace moracle::serve
