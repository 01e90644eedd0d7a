// Edits a valid checkpoint as the fuzzer's bytes choose. Edits reach deeper into the readers than
// random changes of file bytes.
#pragma once

#include "checkpoint/synthetic_checkpoint.h"
#include "fuzz/bytes.h"

namespace moracle::testing {

/// Drops, renames, copies, retypes, reshapes or overwrites one tensor, or all tensors of one role.
/// Tensors stay small, so large allocations are the reader's fault.
void edit_tensors(SyntheticCheckpoint& checkpoint, Bytes& bytes);
/// Sets, adds or removes a value of the config.
void edit_config(nlohmann::json& config, Bytes& bytes);

}  // namespace moracle::testing
