// The threads of the OpenMP runtime that torch uses, as the threads of a device.
#pragma once

#include "moracle/moracle.h"

namespace moracle::python {

/// The process's OpenMP runtime: GCC's, LLVM's and Intel's have these functions.
struct OpenMp {
  int threads = 0;  ///< of a parallel region of the calling thread
  RunTasks run_tasks;
};

/// The runtime that torch's functions call. Without torch: one that is loaded for all modules.
/// Errors: this process has none.
Result<OpenMp> openmp_here();

}  // namespace moracle::python
