#include "kernels/opencl/lines/line_arguments.h"

#include <algorithm>

#include "base/text.h"
#include "kernels/opencl/lines/opencl_lines_plan.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "layout/vnni16.h"
#include "quant/activation.h"

namespace moracle::opencl {
namespace line_arguments {
namespace {

constexpr int64_t kBlock = 32;  // columns

// Whether every row starts at a multiple of 16 bytes.
bool aligned(const Matrix& x) {
  const int64_t row_bytes = x.stride * bits(x.dtype) / 8;
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && row_bytes % 16 == 0;
}

const char* weight_option(DType type) {
  switch (type) {
    case DType::kBF16:
      return "-D WEIGHT_BF16";
    case DType::kF16:
      return "-D WEIGHT_F16";
    case DType::kF8E4M3:
      return "-D WEIGHT_E4M3";
    case DType::kI8:
      return "-D WEIGHT_I8";
    case DType::kI4:
      return "-D WEIGHT_I4";
    case DType::kF4E2M1:
      return "-D WEIGHT_E2M1";
    default:
      return "-D WEIGHT_F32";
  }
}

const char* activation_option(const std::optional<QuantKey>& key) {
  if (!key) return " -D X_BF16";
  return key->dtype == DType::kI8 ? " -D X_I8" : " -D X_E4M3";
}

}  // namespace
}  // namespace line_arguments

LineShape line_shape(const KernelWeights& weights) {
  const MatrixShape& shape = weights.shape;
  const Sections& s = weights.sections;
  const std::optional<QuantKey>& key = weights.scheme.activation;
  const auto at = [](size_t offset) { return static_cast<cl_long>(offset); };
  // A group that is no whole number of blocks is the only one: it covers all columns.
  const auto in_blocks = [](int64_t cols) {
    constexpr int64_t kBlock = line_arguments::kBlock;
    return static_cast<cl_int>(std::max<int64_t>((cols + kBlock - 1) / kBlock, 1));
  };
  const bool quantized = shape.key.quantized();
  return {weights.num_experts,
          at(s.bytes),
          vnni16::panel_bytes(shape),
          at(s.scales),
          at(s.zero_points),
          at(s.bias),
          shape.n,
          shape.k,
          vnni16::num_panels(shape),
          (shape.k + line_arguments::kBlock - 1) / line_arguments::kBlock,
          quantized ? static_cast<cl_int>(vnni16::num_groups(shape)) : 0,
          quantized ? in_blocks(vnni16::group_cols(shape)) : 1,
          static_cast<cl_int>(vnni16::scale_lanes(shape)),
          vnni16::scale_is_exponent(shape),
          quantized,
          !shape.key.symmetric,
          shape.bias,
          in_blocks(key ? group_cols(*key, shape.k) : shape.k)};
}

std::string line_options(const KernelWeights& weights) {
  std::string options = line_arguments::weight_option(weights.shape.key.dtype);
  options += line_arguments::activation_option(weights.scheme.activation);
  if (sums_whole_rows(weights.shape, weights.scheme)) options += " -D WHOLE_ROWS";
  return options;
}

Status launch_lines(const Queue& queue, const LineKernel& kernel, const KernelWeights& weights,
                    const LineShape& shape, const GroupedRows& rows,
                    const ActivationSpec* activation, const Matrix& y, Stream stream) {
  MORACLE_CHECK(check_floats({&y}));
  if (rows.num_rows == 0 || weights.num_experts == 0) return {};
  LineEpilogue epilogue;
  epilogue.cols = y.cols;
  if (activation != nullptr) {
    epilogue.function = static_cast<cl_int>(activation->function);
    epilogue.alpha = activation->alpha;
    epilogue.beta = activation->beta;
    epilogue.limit = activation->limit;
    if (is_gated(activation->function)) epilogue.gates = shape.panels / 2;
  }
  const int64_t results = epilogue.gates > 0 ? epilogue.gates : shape.panels;
  const int64_t at_once = epilogue.gates > 0
                              ? std::max<int64_t>(kernel.panels / kernel.panels_per_gate, 1)
                              : kernel.panels;
  const int64_t mean = (rows.num_rows + weights.num_experts - 1) / weights.num_experts;
  const int64_t strips = kernel.by_row ? 1 : (mean + kernel.rows - 1) / kernel.rows;
  const int64_t places = kernel.by_row ? rows.num_rows : weights.num_experts * strips;
  const int64_t groups = places * ((results + at_once - 1) / at_once);
  return launch_kernel(queue, stream, kernel.name, kernel.kernel, groups, kernel.items,
                       weights.buffer.as<std::byte>(), shape, rows.x.values, rows.x.scales,
                       rows.x.num_scales, rows.row_index, rows.expert_offsets, y, epilogue,
                       rows.num_rows, line_arguments::aligned(rows.x.values), kernel.by_row,
                       strips);
}

}  // namespace moracle::opencl
