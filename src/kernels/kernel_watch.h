// For tests: told of every kernel of a grouped GEMM as it runs, so that plans can be held to it.
#pragma once

#include <functional>
#include <string>

#include "moracle/checkpoint.h"

namespace moracle {

struct KernelRun {
  std::string name;   ///< as in KernelUse
  MatrixShape shape;  ///< of the matrix
  int64_t rows = 0;   ///< of the expert, in this apply; 0: the device alone knows
};
using KernelWatch = std::function<void(const KernelRun& run)>;

/// Calls `watch` from now on, from any thread; nothing: ends that. Not while a kernel runs.
void watch_kernels(KernelWatch watch);

/// True while somebody watches: names are made only then.
bool kernels_are_watched();
void report(const KernelRun& run);

}  // namespace moracle
