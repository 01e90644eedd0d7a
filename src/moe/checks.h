// Checks that layer calls run before any other work.
#pragma once

#include "moe/fused_moe_state.h"

namespace moracle {

/// Errors: the checkpoint's family is unknown, and the caller has not set the routing.
Status check_routing_known(const LayerSpec& layer);

/// Errors: the device has another platform or activation dtype than the plan.
Status check_device(const Plan& plan, const Device& device);

/// Errors: a call of another format than planned; shapes or types of tokens and output that do not
/// fit; adapters that were not planned.
Status check_call(const ExpertsCall& call, const Plan& plan);
/// check_pointer for the arrays of a call.
Status check_pointers(const ExpertsCall& call, const Plan& plan);

/// Errors, which name the argument: a null pointer, or an address that is no multiple of `align`
/// bytes.
Status check_pointer(const void* data, size_t align, const Plan& plan, const char* argument);
/// Same check for a matrix, with the alignment of its elements.
Status check_pointer(const Matrix& matrix, const Plan& plan, const char* argument);

/// Errors: the workspace is smaller than planned. A failed reserve() can leave it so.
Status check_workspace(const Workspace& workspace, const Plan& plan);

/// Kernels take a Matrix for operands that they only read.
inline Matrix as_operand(const ConstMatrix& m) {
  return {const_cast<void*>(m.data), m.dtype, m.rows, m.cols, m.stride};
}

/// Errors: `packed` is null, since an earlier swap or move used the weights up. Also weights packed
/// for another layer, other experts, another backend or another device.
Status check_swap(const PackedWeights::State* packed, const Plan& plan, const Device& device);

}  // namespace moracle
