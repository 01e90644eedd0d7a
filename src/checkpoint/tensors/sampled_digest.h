// A digest of a whole checkpoint that reads little of it. Ranks compare it: each of them reads only
// its experts, so that a checksum over its reads says nothing about the experts of the others.
#pragma once

#include <string>

#include "checkpoint/tensors/tensors.h"

namespace moracle {

/// Covers the name and size of every file; name, dtype, shape and place of every tensor; and blocks
/// of 4 KiB: one of each tensor, and one of each further 16 MiB of a tensor, at places that depend
/// on the tensor's name. A tensor of up to 4 KiB is covered whole. Reads past Tensors::read, so
/// that no ReadRecord counts it. Text: "642 blocks of 5090624 bytes, checksum 0123456789abcdef".
/// Errors: those of TensorFile::read.
Result<std::string> sampled_digest(const Tensors& tensors, ThreadPool& pool);

}  // namespace moracle
