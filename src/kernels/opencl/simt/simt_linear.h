// Kernels on layout vnni16, for opencl-simt and opencl-vectors.
#pragma once

#include <string>
#include <vector>

#include "kernels/grouped_linear.h"
#include "kernels/opencl/device/programs.h"
#include "oracle/kernel_plan.h"

namespace moracle::opencl {

/// A kernel with the arguments of arguments.cl, and how its work-groups divide the work.
struct SimtKernel {
  OpenClForm form;
  const char* file = "";
  const char* function = "";
  std::string options;    ///< besides those of the weights
  int64_t most_rows = 0;  ///< of activations in one run; 0: no limit
  int64_t items = 1;      ///< of a work-group
  int64_t rows = 1;       ///< of activations that a work-group takes at once
  bool by_row = false;    ///< a work-group for each row, else for each strip of an expert's rows
  int64_t panels = 1;     ///< of results that a work-group takes
  int64_t panels_per_gate = 2;  ///< 2: half of its panels are gates; 1: as many gates as panels
};

/// Compiles `kernels`. A run uses the first kernel that serves its number of rows. `backend` is
/// named in errors. Errors: not an OpenCL device; a kernel that does not compile.
Result<std::unique_ptr<GroupedLinear>> make_simt_linear(const char* backend,
                                                        KernelWeights&& weights, Device& device,
                                                        std::vector<SimtKernel> kernels);

}  // namespace moracle::opencl
