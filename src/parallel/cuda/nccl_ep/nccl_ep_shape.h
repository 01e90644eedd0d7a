// Which layers nccl_ep can serve. Plain C++: tests need no GPU.
#pragma once

#include "parallel/expert_batches.h"

namespace moracle {

/// An error of the exchange nccl-ep.
Error ep_refusal(std::string need, std::string fact);

/// Errors: sizes that its kernels cannot move. They would end the process in an assertion.
Status check_ep_shape(const BatchShape& shape);

}  // namespace moracle
