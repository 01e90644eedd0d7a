// A valid checkpoint with changes that a fuzzer's bytes spell out: far more of them reach the
// readers' depths than changes to the file's own bytes would.
#pragma once

#include "checkpoint/synthetic_checkpoint.h"
#include "fuzz/bytes.h"

namespace moracle::testing {

/// One tensor, or all that play one part, dropped, renamed, copied, retyped, reshaped or
/// overwritten. Tensors stay small, so that a reader that makes much of one is at fault.
void edit_tensors(SyntheticCheckpoint& checkpoint, Bytes& bytes);
/// A value of the config set, added or removed.
void edit_config(nlohmann::json& config, Bytes& bytes);

}  // namespace moracle::testing
