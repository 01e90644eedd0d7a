#include "kernels/opencl/simt/simt_linear.h"

#include <algorithm>

#include "base/text.h"
#include "kernels/check_ops.h"
#include "kernels/kernel_watch.h"
#include "kernels/opencl/device/launch.h"
#include "kernels/opencl/device/opencl_device.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "layout/vnni16.h"
#include "quant/activation.h"

namespace moracle::opencl {
namespace simt_linear {
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

// As Shape in codes.cl.
struct Shape {
  cl_long num_experts, expert_bytes, panel_bytes;
  cl_long scales, zero_points, minimums, bias;
  cl_long n, k, panels, blocks;
  cl_int groups, group_blocks, scale_lanes, scale_exponent;
  cl_int quantized, has_zero_points, has_bias, x_group_blocks;
  cl_long step_bytes, factor_bytes;
  cl_int factor_groups, step_zero;
};

Shape shape_of(const KernelWeights& weights) {
  const MatrixShape& shape = weights.shape;
  const Sections& s = weights.sections;
  const std::optional<QuantKey>& key = weights.scheme.activation;
  const auto at = [](size_t offset) { return static_cast<cl_long>(offset); };
  // A group that is not a whole number of blocks is the only one: it covers all columns.
  const auto in_blocks = [](int64_t cols) {
    return static_cast<cl_int>(std::max<int64_t>((cols + kBlock - 1) / kBlock, 1));
  };
  const bool quantized = shape.key.quantized(), steps = vnni16::scale_is_step(shape);
  return {weights.num_experts,
          at(s.bytes),
          vnni16::panel_bytes(shape),
          at(s.scales),
          at(s.zero_points),
          at(s.minimums),
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
          panels_have_zero_points(shape),
          shape.bias,
          in_blocks(key ? group_cols(*key, shape.k) : shape.k),
          steps ? vnni16::step_bytes(shape) : 0,
          steps ? vnni16::factor_bytes(shape) : 0,
          steps ? static_cast<cl_int>(kFactorCols / vnni16::group_cols(shape)) : 1,
          shape.key.symmetric ? 0 : kStepZeroPoint};
}

// Compiler options of the weights and the kernel: "-D WEIGHT_I4 -D X_BF16".
std::string options_of(const KernelWeights& weights, const OpenClForm& form) {
  std::string options = weight_option(weights.shape.key.dtype);
  options += activation_option(weights.scheme.activation);
  if (form.sums == OpenClForm::Sums::kIntegers) options += " -D WHOLE_ROWS";
  if (weights.shape.key.minimums) options += " -D MINIMUMS";
  if (weights.shape.key.scale_dtype == DType::kF16) options += " -D SCALES_F16";
  if (vnni16::scale_is_step(weights.shape)) options += " -D SCALES_STEPS";
  return options;
}

// As Epilogue in arguments.cl. `activation` is applied to the outputs; null: none.
struct Epilogue {
  cl_int function = -1;
  cl_float alpha = 0, beta = 0, limit = 0;
  cl_long gates = 0, cols = 0;
};

Epilogue epilogue_of(const ActivationSpec* activation, const Shape& shape, const Matrix& y) {
  Epilogue epilogue;
  epilogue.cols = y.cols;
  if (activation == nullptr) return epilogue;
  epilogue.function = static_cast<cl_int>(activation->function);
  epilogue.alpha = activation->alpha;
  epilogue.beta = activation->beta;
  epilogue.limit = activation->limit;
  if (is_gated(activation->function)) epilogue.gates = shape.panels / 2;
  return epilogue;
}

class SimtLinear : public LinearKernel {
 public:
  SimtLinear(const KernelWeights& weights, const Queue& queue, SimtKernel kernel)
      : weights_(weights),
        queue_(queue),
        shape_(shape_of(weights)),
        how_(std::move(kernel)),
        name_{how_.file, how_.function, options_of(weights, how_.form) + how_.options} {}

  /// Compiles the kernel: a failure is reported when the layer is made.
  Status compile() {
    MORACLE_TRY(kernel_, queue_.programs->make(name_));
    return {};
  }

  bool serves(const LinearCall& call) const override {
    const auto* const rows = call.from<GroupedRows>();
    return rows != nullptr && (how_.most_rows == 0 || rows->num_rows <= how_.most_rows) &&
           (call.to<LinearCall::Store>() != nullptr || call.to<LinearCall::Activate>() != nullptr);
  }
  Status run(const LinearCall& call, Stream stream) override {
    const GroupedRows& rows = *call.from<GroupedRows>();
    const auto* const activate = call.to<LinearCall::Activate>();
    if (activate != nullptr) MORACLE_CHECK(check_activation(activate->activation));
    MORACLE_CHECK(check_floats({&call.out}));
    const int64_t experts = weights_.num_experts;
    if (rows.num_rows == 0 || experts == 0) return {};
    if (kernels_are_watched()) report({moracle::name(how_.form), weights_.shape});
    const Epilogue epilogue =
        epilogue_of(activate != nullptr ? &activate->activation : nullptr, shape_, call.out);
    const bool gated = epilogue.gates > 0;
    const int64_t results = gated ? epilogue.gates : shape_.panels;
    const int64_t at_once = gated ? how_.panels / how_.panels_per_gate : how_.panels;
    const int64_t mean = (rows.num_rows + experts - 1) / experts;
    const int64_t strips = how_.by_row ? 1 : (mean + how_.rows - 1) / how_.rows;
    const int64_t row_tiles = how_.by_row ? rows.num_rows : experts * strips;
    const int64_t groups = row_tiles * ((results + at_once - 1) / at_once);
    return launch_kernel(queue_, stream, name_, kernel_, groups, how_.items,
                         weights_.buffer.as<std::byte>(), shape_, rows.x.values, rows.x.scales,
                         rows.x.num_scales, rows.row_index, rows.expert_offsets, call.out, epilogue,
                         rows.num_rows, aligned(rows.x.values), how_.by_row, strips);
  }

 private:
  const KernelWeights& weights_;
  const Queue& queue_;  // owned by the device, which outlives its layers
  Shape shape_;
  SimtKernel how_;
  KernelName name_;
  cl_kernel kernel_ = nullptr;  // owned by the device's programs
};

}  // namespace
}  // namespace simt_linear

Result<std::unique_ptr<GroupedLinear>> make_simt_linear(const char* backend,
                                                        KernelWeights&& weights, Device& device,
                                                        std::vector<SimtKernel> kernels) {
  auto* const there = dynamic_cast<OpenClDevice*>(&device);
  if (there == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", str("backend ", backend), "an opencl device",
                 "it is " + device.name()};
  }
  auto linear = std::make_unique<GroupedLinear>(std::move(weights));
  for (SimtKernel& how : kernels)
    MORACLE_CHECK(linear->add<simt_linear::SimtLinear>(there->queue(), std::move(how)).compile());
  return linear;
}

}  // namespace moracle::opencl
