// Backend "opencl-lines": plain OpenCL C on layout vnni16, for devices without subgroups or 16-bit
// floats. The kernel is in lines.cl. It is compiled for the number of activation rows that share
// each decoded line of weights.
#include <algorithm>
#include <array>

#include "base/text.h"
#include "kernels/kernel_watch.h"
#include "kernels/opencl/device/launch.h"
#include "kernels/opencl/device/opencl_device.h"
#include "kernels/opencl/opencl_lines_plan.h"
#include "kernels/opencl/opencl_makers.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "layout/vnni16.h"
#include "quant/activation.h"

namespace moracle {
namespace opencl {
namespace opencl_lines {
namespace {

// As Shape in lines.cl.
struct Shape {
  cl_long num_experts, expert_bytes, panel_bytes;
  cl_long scales, zero_points, bias;
  cl_long n, k, panels, blocks;
  cl_int groups, group_blocks, scale_lanes, scale_exponent;
  cl_int quantized, has_zero_points, has_bias, x_group_blocks;
};

constexpr int64_t kBlock = 32;  // columns

Shape shape_of(const KernelWeights& weights) {
  const MatrixShape& shape = weights.shape;
  const Sections& s = weights.sections;
  const std::optional<QuantKey>& key = weights.scheme.activation;
  const auto at = [](size_t offset) { return static_cast<cl_long>(offset); };
  // A group that is no whole number of blocks is the only one: it covers all columns.
  const auto in_blocks = [](int64_t cols) {
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
          (shape.k + kBlock - 1) / kBlock,
          quantized ? static_cast<cl_int>(vnni16::num_groups(shape)) : 0,
          quantized ? in_blocks(vnni16::group_cols(shape)) : 1,
          static_cast<cl_int>(vnni16::scale_lanes(shape)),
          vnni16::scale_is_exponent(shape),
          quantized,
          !shape.key.symmetric,
          shape.bias,
          in_blocks(key ? group_cols(*key, shape.k) : shape.k)};
}

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

// A kernel for `rows` rows of activations.
struct Variant {
  int64_t rows;
  KernelName name;
  cl_kernel kernel;
};

class OpenClLinesLinear : public GroupedLinear {
 public:
  OpenClLinesLinear(KernelWeights weights, const Queue& queue)
      : weights_(std::move(weights)), queue_(queue), shape_(shape_of(weights_)) {}

  /// Compiles the kernels: a failure is reported when the layer is made.
  Status compile() {
    std::string options = weight_option(weights_.shape.key.dtype) +
                          std::string(activation_option(weights_.scheme.activation));
    if (sums_whole_rows(weights_.shape, weights_.scheme)) options += " -D WHOLE_ROWS";
    options += queue_.is_cpu ? str(" -D WIDE -D SPLITS=1 -D PANELS=", kCpuPanels)
                             : str(" -D SPLITS=", kGpuSplits, " -D PANELS=1");
    for (const int64_t rows : {1, 4}) {
      KernelName name{"lines.cl", "lines_linear", str(options, " -D ROWS=", rows)};
      MORACLE_TRY(const cl_kernel kernel, queue_.programs->make(name));
      variants_.push_back({rows, std::move(name), kernel});
    }
    return {};
  }

  Status run(const GroupedRows& rows, const Matrix& y, Stream stream) override {
    MORACLE_CHECK(check_floats({&y}));
    if (rows.num_rows == 0 || weights_.num_experts == 0) return {};
    if (kernels_are_watched())
      report({lines_kernel_name(weights_.shape, weights_.scheme), weights_.shape});
    const int64_t experts = weights_.num_experts;
    const Variant& variant = variants_[rows.num_rows <= 2 * experts ? 0 : 1];
    // A group for each row finds its expert by search; with many rows most of these groups would
    // only search.
    const bool by_row = rows.num_rows <= 2 * experts;
    const int64_t mean = (rows.num_rows + experts - 1) / experts;
    const int64_t strips = by_row ? 1 : (mean + variant.rows - 1) / variant.rows;
    const int64_t panels = queue_.is_cpu ? kCpuPanels : 1,
                  panel_groups = (shape_.panels + panels - 1) / panels;
    const int64_t groups = (by_row ? rows.num_rows : experts * strips) * panel_groups;
    return launch_kernel(queue_, stream, variant.name, variant.kernel, groups,
                         queue_.is_cpu ? 1 : 16 * kGpuSplits, weights_.buffer.as<std::byte>(),
                         shape_, rows.x.values, rows.x.scales, rows.x.num_scales, rows.row_index,
                         rows.expert_offsets, y, rows.num_rows, aligned(rows.x.values), by_row,
                         strips);
  }
  const KernelWeights& weights() const override { return weights_; }

 private:
  static constexpr int64_t kGpuSplits = 8;  // a work-group of 128
  static constexpr int64_t kCpuPanels = 4;  // enough work for one call of the kernel

  KernelWeights weights_;
  const Queue& queue_;  // owned by the device, which outlives its layers
  Shape shape_;
  std::vector<Variant> variants_;
};

}  // namespace
}  // namespace opencl_lines

Result<std::unique_ptr<GroupedLinear>> make_lines(KernelWeights&& weights, const KernelPlan&,
                                                  Device& device) {
  auto* const there = dynamic_cast<OpenClDevice*>(&device);
  if (there == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "backend opencl-lines", "an opencl device",
                 "it is " + device.name()};
  }
  auto linear =
      std::make_unique<opencl_lines::OpenClLinesLinear>(std::move(weights), there->queue());
  MORACLE_CHECK(linear->compile());
  return std::unique_ptr<GroupedLinear>(std::move(linear));
}

}  // namespace opencl
}  // namespace moracle
