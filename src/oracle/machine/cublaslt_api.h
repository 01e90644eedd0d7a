// The functions of cuBLASLt, found in the system's library at run time. A machine without the
// library starts the same program; the backend that needs it is then refused.
#pragma once

#include <cublasLt.h>

#include "moracle/base.h"

namespace moracle::cublaslt {

/// Version of the library, and of the headers of this build, that multiplies fp8 in blocks.
inline constexpr size_t kBlocksVersion = 120900;
inline constexpr bool kHeadersHaveBlocks = CUBLAS_VERSION >= kBlocksVersion;

/// Every function that this library calls (cublaslt_functions.inc).
struct Api {
#define X(function) decltype(&::function) function = nullptr;
#include "oracle/machine/cublaslt_functions.inc"
#undef X
};

/// Loads libcublasLt.so.13 or .12 once per process, first from NVIDIA's packages beside the Python
/// package. Errors: no such library, one that needs a newer driver, or one that lacks a function.
const Result<Api>& api();

}  // namespace moracle::cublaslt
