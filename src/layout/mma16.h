// Layout mma16 (mma16_block.h), with the groups of columns that share scales.
#pragma once

#include "layout/groups.h"
#include "layout/layout.h"
#include "layout/mma16_block.h"

namespace moracle::mma16 {

using moracle::group_cols;
using moracle::num_groups;
using moracle::scale_is_exponent;

}  // namespace moracle::mma16
