// The functions of NVIDIA's nccl_ep, found at run time like those of NCCL.
#pragma once

#include <nccl_ep.h>

#include "moracle/base.h"

namespace moracle::nccl {

/// Every function that this library calls (nccl_ep_functions.inc).
struct EpApi {
#define X(function) decltype(&::function) function = nullptr;
#include "parallel/cuda/nccl_ep/nccl_ep_functions.inc"
#undef X
  int version = 0;  ///< 200 for 0.2.0
};

/// Loads libnccl_ep.so once per process, after NCCL. Errors: no such library where the loader
/// searches, or another version; an NCCL that is too old for it.
const Result<EpApi>& ep_api();

}  // namespace moracle::nccl
