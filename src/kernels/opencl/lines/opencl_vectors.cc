// Backend "opencl-vectors": layout vnni16 on CPUs, whose compilers turn OpenCL's vectors into those
// of the CPU. The kernel is in vectors.cl.
#include "base/text.h"
#include "kernels/check_ops.h"
#include "kernels/kernel_watch.h"
#include "kernels/opencl/device/opencl_device.h"
#include "kernels/opencl/lines/line_arguments.h"
#include "kernels/opencl/lines/opencl_lines_plan.h"
#include "kernels/opencl/opencl_makers.h"

namespace moracle {
namespace opencl {
namespace opencl_vectors {
namespace {

class OpenClVectorsLinear : public GroupedLinear {
 public:
  OpenClVectorsLinear(KernelWeights weights, const Queue& queue)
      : weights_(std::move(weights)), queue_(queue), shape_(line_shape(weights_)) {}

  /// Compiles the kernels: a failure is reported when the layer is made.
  Status compile() {
    constexpr int64_t kPanels = 4;  // enough work for one call of the kernel
    const std::string options = str(line_options(weights_), " -D WIDE -D PANELS=", kPanels);
    for (LineKernel* kernel : {&one_, &four_}) {
      kernel->rows = kernel == &one_ ? 1 : 4;
      kernel->by_row = kernel == &one_;
      kernel->panels = kPanels;
      kernel->panels_per_gate = 1;
      kernel->name = {"lines/vectors.cl", "vectors", str(options, " -D ROWS=", kernel->rows)};
      MORACLE_TRY(kernel->kernel, queue_.programs->make(kernel->name));
    }
    return {};
  }

  Status run(const GroupedRows& rows, const Matrix& y, Stream stream) override {
    return run(rows, nullptr, y, stream);
  }
  Status run_activated(const GroupedRows& rows, const ActivationSpec& activation, const Matrix& out,
                       Stream stream) override {
    MORACLE_CHECK(check_activation(activation));
    return run(rows, &activation, out, stream);
  }
  const KernelWeights& weights() const override { return weights_; }

 private:
  Status run(const GroupedRows& rows, const ActivationSpec* activation, const Matrix& y,
             Stream stream) {
    if (kernels_are_watched())
      report({vectors_name(weights_.shape, weights_.scheme), weights_.shape});
    const LineKernel& kernel = rows.num_rows <= 2 * weights_.num_experts ? one_ : four_;
    return launch_lines(queue_, kernel, weights_, shape_, rows, activation, y, stream);
  }

  KernelWeights weights_;
  const Queue& queue_;  // owned by the device, which outlives its layers
  LineShape shape_;
  LineKernel one_, four_;  // for one row of activations, and for four of an expert
};

}  // namespace
}  // namespace opencl_vectors

Result<std::unique_ptr<GroupedLinear>> make_vectors(KernelWeights&& weights, const KernelPlan&,
                                                    Device& device) {
  auto* const there = dynamic_cast<OpenClDevice*>(&device);
  if (there == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "backend opencl-vectors", "an opencl device",
                 "it is " + device.name()};
  }
  auto linear =
      std::make_unique<opencl_vectors::OpenClVectorsLinear>(std::move(weights), there->queue());
  MORACLE_CHECK(linear->compile());
  return std::unique_ptr<GroupedLinear>(std::move(linear));
}

}  // namespace opencl
}  // namespace moracle
