// A matrix in AWQ's form, which AutoRound also writes.
#pragma once

#include <string>

#include "checkpoint/producers/producer.h"

namespace moracle {

/// `key`: int4 in groups. `symmetric`: the config key and value that exclude zero points, for the
/// message about a file that has some. Errors: a tensor that is missing or has another dtype or
/// shape.
Result<DescribedLinear> describe_awq(const Tensors& tensors, const std::string& module,
                                     const QuantKey& key, const char* symmetric);

}  // namespace moracle
