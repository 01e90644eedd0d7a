// The functions of NCCL, found in the system's library at run time. A machine without the library
// starts the same program; the exchange that needs it is then refused.
#pragma once

#include <nccl.h>

#include <string>

#include "moracle/base.h"

namespace moracle::nccl {

/// Every function that this library calls (nccl_functions.inc).
struct Api {
#define X(function) decltype(&::function) function = nullptr;
#include "parallel/cuda/nccl_functions.inc"
#undef X
  int version = 0;  ///< 22809 for 2.28.9
};

/// Loads libnccl.so.2 once per process, first from NVIDIA's packages beside the Python package.
/// Errors: no such library, or one that lacks a function.
const Result<Api>& api();

/// "2.28.9"
std::string version_text(int version);
/// "ncclSystemError", which NCCL itself only describes.
std::string name(ncclResult_t result);

}  // namespace moracle::nccl
