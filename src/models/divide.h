// Tensor parallelism: the share of one rank of attention (by heads), dense MLPs and shared experts
// (by columns). The sum of all ranks' outputs is the output of the module.
#pragma once

#include "models/description.h"
#include "moracle/model.h"

namespace moracle {

/// Leaves the share of rank options.parallel.ep_rank of options.tp_size, and of the output's rows
/// that of options.lm_head_size. 1: everything. Router, norms and embedding stay whole. Errors
/// (kUnsupported), which name the layer: numbers that the ranks do not divide; a kind of attention
/// that is not divided; fewer blocks of the output's rows than ranks.
Status divide(Description& description, const ModelOptions& options);

}  // namespace moracle
