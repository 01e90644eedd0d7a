// The instruction sets that this run of the tests does without.
#pragma once

#include "moracle/oracle.h"

namespace moracle::testing {

/// What MORACLE_TEST_WITHOUT names, and what builds on it; kNone where it is not set.
Isa test_mask();

}  // namespace moracle::testing
