// Checks that two checkpoints describe the same computation.
#pragma once

#include "models/description.h"

namespace moracle {

/// Errors (kUnsupported): the first setting in which `written`, of an architecture of GGUF, differs
/// from the source: sizes, attention, rotary frequencies, activations, routing, norms that exist.
/// Values of weights are not compared. `file` names the source in messages.
Status check_same_model(const Description& source, const Description& written,
                        std::string_view architecture, const std::string& file);

}  // namespace moracle
