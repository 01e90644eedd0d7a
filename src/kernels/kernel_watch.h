// For tests: reports every kernel of a grouped GEMM as it runs, so that tests can check plans.
#pragma once

#include <functional>
#include <string>

#include "moracle/layer.h"

namespace moracle {

struct KernelRun {
  std::string name;   ///< as in KernelUse
  MatrixShape shape;  ///< of the matrix
  int64_t rows = 0;   ///< of the expert, in this apply; 0: only the device knows
};
using KernelWatch = std::function<void(const KernelRun& run)>;

/// Calls `watch` from now on, from any thread; an empty function stops it. Do not call while a
/// kernel runs.
void watch_kernels(KernelWatch watch);

/// True while a watch is set: names are built only then.
bool kernels_are_watched();
void report(const KernelRun& run);

}  // namespace moracle
