// Backend "opencl-reference": every scheme on every OpenCL device, from canonical weights. The
// kernel is in reference.cl. Each sum adds its columns in order, so results are always
// deterministic.
#include <algorithm>

#include "base/text.h"
#include "kernels/integer_sums.h"
#include "kernels/kernel_watch.h"
#include "kernels/opencl/device/launch.h"
#include "kernels/opencl/device/opencl_device.h"
#include "kernels/opencl/opencl_makers.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "quant/activation.h"

namespace moracle {
namespace opencl {
namespace opencl_reference {
namespace {

// As Shape in reference.cl.
struct Shape {
  cl_long num_experts, expert_bytes, row_bytes;
  cl_long codes, scales, zero_points, minimums, group_index, bias;
  cl_long n, k, group_rows, group_cols, scale_cols;
  cl_int quantized, has_zero_points, has_minimums, has_group_index, has_bias;
};

Shape shape_of(const KernelWeights& weights) {
  const MatrixShape& shape = weights.shape;
  const Sections& s = weights.sections;
  CanonicalMatrix outline;
  outline.n = shape.n, outline.k = shape.k, outline.key = shape.key;
  const auto at = [](size_t offset) { return static_cast<cl_long>(offset); };
  const bool quantized = shape.key.quantized();
  return {weights.num_experts,
          at(s.bytes),
          outline.row_bytes(),
          at(s.codes),
          at(s.scales),
          at(s.zero_points),
          at(s.minimums),
          at(s.group_index),
          at(s.bias),
          shape.n,
          shape.k,
          std::max<int64_t>(
              shape.key.group.rows == GroupShape::kAll ? shape.n : shape.key.group.rows, 1),
          std::max<int64_t>(outline.group_cols(), 1),
          quantized ? outline.scale_cols() : 0,
          quantized,
          !shape.key.symmetric,
          shape.key.minimums,
          shape.group_index,
          shape.bias};
}

std::string options_for(const MatrixShape& shape, const Scheme& scheme) {
  const auto weight = [&] {
    switch (shape.key.dtype) {
      case DType::kBF16:
        return "BF16";
      case DType::kF16:
        return "F16";
      case DType::kF8E4M3:
        return "E4M3";
      case DType::kI8:
        return "I8";
      case DType::kI4:
        return "I4";
      case DType::kF4E2M1:
        return "E2M1";
      default:
        return "F32";
    }
  };
  std::string options = str("-D WEIGHT_", weight());
  if (scheme.activation) options += " -D X_CODES";
  if (scheme.activation && scheme.activation->dtype == DType::kI8) options += " -D X_I8";
  if (sums_integers(shape, scheme)) options += " -D WHOLE";
  return options;
}

class OpenClReferenceLinear : public LinearKernel {
 public:
  OpenClReferenceLinear(const KernelWeights& weights, const PlannedKernel& planned,
                        const Queue& queue)
      : weights_(weights),
        form_(planned.form),
        queue_(queue),
        shape_(shape_of(weights_)),
        name_{"reference.cl", "reference_linear", options_for(weights_.shape, weights_.scheme)} {}

  /// Compiles the kernel: a failure is reported when the layer is made.
  Status compile() {
    MORACLE_TRY(kernel_, queue_.programs->make(name_));
    return {};
  }

  Status run(const LinearCall& call, Stream stream) override {
    const GroupedRows& rows = *call.from<GroupedRows>();
    MORACLE_CHECK(check_floats({&call.out}));
    const std::optional<QuantKey>& key = weights_.scheme.activation;
    if (!key) MORACLE_CHECK(check_floats({&rows.x.values}));
    if (rows.num_rows == 0) return {};
    if (kernels_are_watched()) report({moracle::name(form_), weights_.shape});
    const int64_t threads = std::min<int64_t>(64, queue_.max_group);
    const int64_t groups = rows.num_rows * ((shape_.n + threads - 1) / threads);
    const int64_t x_group = std::max<int64_t>(key ? group_cols(*key, shape_.k) : 1, 1);
    return launch_kernel(queue_, stream, name_, kernel_, groups, threads,
                         weights_.buffer.as<std::byte>(), shape_, rows.x.values, rows.x.scales,
                         rows.x.num_scales, x_group, rows.row_index, rows.expert_offsets, call.out,
                         rows.num_rows);
  }

 private:
  const KernelWeights& weights_;
  const KernelForm form_;
  const Queue& queue_;  // owned by the device, which outlives its layers
  Shape shape_;
  KernelName name_;
  cl_kernel kernel_ = nullptr;  // owned by the device's programs
};

}  // namespace
}  // namespace opencl_reference

Result<std::unique_ptr<GroupedLinear>> make_reference(KernelWeights&& weights,
                                                      const KernelPlan& plan, Device& device) {
  auto* const there = dynamic_cast<OpenClDevice*>(&device);
  if (there == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "backend opencl-reference", "an opencl device",
                 "it is " + device.name()};
  }
  auto linear = std::make_unique<GroupedLinear>(std::move(weights));
  auto& kernel =
      linear->add<opencl_reference::OpenClReferenceLinear>(plan.kernels.front(), there->queue());
  MORACLE_CHECK(kernel.compile());
  return linear;
}

}  // namespace opencl
}  // namespace moracle
