// The rows name their makers, which the kernels room defines: a declaration here, never an include.
#pragma once

#include "moracle/oracle.h"

#define MORACLE_DECLARE_MAKER(maker) \
  Result<std::unique_ptr<GroupedLinear>> maker(KernelWeights&&, Device&)
