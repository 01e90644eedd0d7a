// What the kernels on layout vnni16 take, for opencl-lines and opencl-vectors.
#pragma once

#include <string>

#include "kernels/grouped_linear.h"
#include "kernels/opencl/device/launch.h"

namespace moracle::opencl {

/// As Shape in codes.cl.
struct LineShape {
  cl_long num_experts, expert_bytes, panel_bytes;
  cl_long scales, zero_points, bias;
  cl_long n, k, panels, blocks;
  cl_int groups, group_blocks, scale_lanes, scale_exponent;
  cl_int quantized, has_zero_points, has_bias, x_group_blocks;
};
LineShape line_shape(const KernelWeights& weights);

/// As Epilogue in arguments.cl.
struct LineEpilogue {
  cl_int function = -1;
  cl_float alpha = 0, beta = 0, limit = 0;
  cl_long gates = 0, cols = 0;
};

/// "-D WEIGHT_I4 -D X_BF16": what the kernels are compiled for.
std::string line_options(const KernelWeights& weights);

/// A kernel, and how its work-groups divide the work.
struct LineKernel {
  KernelName name;
  cl_kernel kernel = nullptr;
  int64_t items = 1;    ///< of a work-group
  int64_t rows = 1;     ///< of activations that a work-group takes at once
  bool by_row = false;  ///< a work-group for each row, else for each strip of an expert's rows
  int64_t panels = 1;   ///< of results that a work-group takes
  int64_t panels_per_gate = 2;  ///< 2: with gates, half of its panels; 1: as many
};

/// Enqueues `kernel`. Errors: `y` is not of floats; the driver refuses the kernel.
Status launch_lines(const Queue& queue, const LineKernel& kernel, const KernelWeights& weights,
                    const LineShape& shape, const GroupedRows& rows,
                    const ActivationSpec* activation, const Matrix& y, Stream stream);

}  // namespace moracle::opencl
