// What calls of layers check before they do anything.
#pragma once

#include "moe/fused_moe_state.h"

namespace moracle {

/// Errors: another kind of device than the plan was made for.
Status check_device(const Plan& plan, const Device& device);

/// Errors, by the argument's name: null, or no multiple of `align` bytes.
Status check_pointer(const void* data, size_t align, const Plan& plan, const char* argument);
/// The same of a matrix, whose elements say the alignment.
Status check_pointer(const Matrix& matrix, const Plan& plan, const char* argument);

/// Errors: less scratch than planned, which a reserve() that failed may leave.
Status check_workspace(const Workspace& workspace, const Plan& plan);

/// Errors: `packed` is null, since an earlier swap used the weights up; or they were packed for
/// another layer than the plan's, for other experts, for another backend or on another device.
Status check_swap(const PackedWeights::State* packed, const Plan& plan, const Device& device);

}  // namespace moracle
