// Backend "opencl-lines": plain OpenCL C on layout vnni16, for GPUs without subgroups or 16-bit
// floats. few_rows.cl reads each weight for a few rows of activations; many_rows.cl decodes tiles
// to local memory.
#include "kernels/kernel_watch.h"
#include "kernels/opencl/device/opencl_device.h"
#include "kernels/opencl/lines/line_arguments.h"
#include "kernels/opencl/lines/opencl_lines_plan.h"
#include "kernels/opencl/opencl_makers.h"

#include "base/text.h"
#include "kernels/check_ops.h"

namespace moracle {
namespace opencl {
namespace opencl_lines {
namespace {

class OpenClLinesLinear : public GroupedLinear {
 public:
  OpenClLinesLinear(KernelWeights weights, const KernelPlan& plan, const Queue& queue)
      : weights_(std::move(weights)),
        queue_(queue),
        shape_(line_shape(weights_)),
        few_only_(plan.deterministic && !sums_whole_rows(weights_.shape, weights_.scheme)) {}

  /// Compiles the kernels: a failure is reported when the layer is made.
  Status compile() {
    constexpr int64_t kSplits = 8;
    const std::string options = line_options(weights_);
    const auto make = [&](LineKernel& to) -> Status {
      MORACLE_TRY(to.kernel, queue_.programs->make(to.name));
      return {};
    };
    const auto few = [&](int64_t rows) {
      return KernelName{"lines/few_rows.cl", "few_rows",
                        str(options, " -D SPLITS=", kSplits, " -D ROWS=", rows)};
    };
    one_ = {.name = few(1), .items = 16 * kSplits, .rows = 1, .by_row = true, .panels = 4};
    four_ = {.name = few(4), .items = 16 * kSplits, .rows = 4, .panels = 4};
    MORACLE_CHECK(make(one_));
    MORACLE_CHECK(make(four_));
    if (few_only_) return {};
    many_ = {.name = {"lines/many_rows.cl", "many_rows", options},
             .items = 128,
             .rows = 64,
             .panels = 8};
    return make(many_);
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
    const int64_t experts = weights_.num_experts;
    const bool many = !few_only_ && rows.num_rows > kFewRows * experts;
    if (kernels_are_watched()) {
      report({many ? many_rows_name(weights_.shape, weights_.scheme)
                   : few_rows_name(weights_.shape, weights_.scheme),
              weights_.shape});
    }
    // A work-group for each row finds its expert by search; with many rows most of these groups
    // would only search.
    const LineKernel& kernel = many ? many_ : rows.num_rows <= 2 * experts ? one_ : four_;
    return launch_lines(queue_, kernel, weights_, shape_, rows, activation, y, stream);
  }

  KernelWeights weights_;
  const Queue& queue_;  // owned by the device, which outlives its layers
  LineShape shape_;
  const bool few_only_;  // the order of a row's sums must not depend on the other rows
  LineKernel one_, four_, many_;
};

}  // namespace
}  // namespace opencl_lines

Result<std::unique_ptr<GroupedLinear>> make_lines(KernelWeights&& weights, const KernelPlan& plan,
                                                  Device& device) {
  auto* const there = dynamic_cast<OpenClDevice*>(&device);
  if (there == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "backend opencl-lines", "an opencl device",
                 "it is " + device.name()};
  }
  auto linear =
      std::make_unique<opencl_lines::OpenClLinesLinear>(std::move(weights), plan, there->queue());
  MORACLE_CHECK(linear->compile());
  return std::unique_ptr<GroupedLinear>(std::move(linear));
}

}  // namespace opencl
}  // namespace moracle
