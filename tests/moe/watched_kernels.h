// Records which kernels of grouped GEMMs run, and compares them with the plan.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "kernels/kernel_watch.h"
#include "moracle/oracle.h"

namespace moracle::testing {

/// Records every kernel that runs during its lifetime.
class Watching {
 public:
  Watching() {
    watch_kernels([this](const KernelRun& run) {
      const std::lock_guard lock(mutex_);
      runs_.push_back(run);
    });
  }
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;
  ~Watching() { watch_kernels(nullptr); }
  std::vector<KernelRun> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(runs_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<KernelRun> runs_;
};

inline std::string matrix_of(const MatrixShape& shape) {
  return str("[", shape.n, ", ", shape.k, "] ");
}

/// Names of kernels, each with its matrix.
using Names = std::set<std::string>;

inline Names planned(const Plan& plan) {
  Names names;
  for (const MatrixPlan& matrix : plan.matrices) {
    for (const KernelUse& use : matrix.kernels) names.insert(matrix_of(matrix.shape) + use.name);
  }
  return names;
}

/// Checks that the plan lists each of `runs` for this number of tokens; adds their names to `seen`.
inline void expect_planned(const std::vector<KernelRun>& runs, const Plan& plan, int64_t tokens,
                           Names& seen) {
  for (const KernelRun& run : runs) {
    const auto matrix = std::find_if(plan.matrices.begin(), plan.matrices.end(),
                                     [&](const MatrixPlan& one) { return one.shape == run.shape; });
    ASSERT_NE(matrix, plan.matrices.end()) << matrix_of(run.shape);
    const auto& kernels = matrix->kernels;
    const bool listed = std::any_of(kernels.begin(), kernels.end(), [&](const KernelUse& use) {
      return use.name == run.name &&
             use.range.may_run(tokens, run.rows > 0 ? run.rows : use.range.from_rows);
    });
    EXPECT_TRUE(listed) << run.name << " for " << run.rows << " rows of " << tokens << " tokens\n"
                        << describe(plan);
    seen.insert(matrix_of(run.shape) + run.name);
  }
}

}  // namespace moracle::testing
