// The instruction sets that this run of the tests does without.
#pragma once

#include "moracle/oracle.h"

namespace moracle::testing {

/// The instruction sets that MORACLE_TEST_WITHOUT names and the sets that depend on them. kNone if
/// it is not set.
Isa test_mask();

}  // namespace moracle::testing
