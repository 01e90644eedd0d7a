#include "kernels/opencl/matrix/matrix_linear.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "kernels/kernel_watch.h"
#include "kernels/opencl/device/launch.h"
#include "kernels/opencl/device/opencl_device.h"
#include "kernels/opencl/matrix/opencl_matrix_plan.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "layout/groups.h"
#include "quant/activation.h"

namespace moracle {
namespace opencl {
namespace matrix_linear {
namespace {

// As Shape in weights.cl.
struct Shape {
  cl_long num_experts, expert_bytes;
  cl_long scales, zero_points, bias;
  cl_long n, k, padded_rows, padded_cols;
  cl_long scale_row, scale_group;
  cl_int block_rows, group_blocks;
  cl_int quantized, has_zero_points, has_bias, x_group_blocks;
};

constexpr int64_t kBlock = 32;  // columns
constexpr int64_t kTiles = 2;   // products of 8 rows side by side
constexpr int64_t kSplits = 4;  // subgroups of a work-group

int64_t padded(int64_t count, int64_t step) {
  return (count + step - 1) / step * step;
}

Shape shape_of(const KernelWeights& weights, const MatrixForm& form) {
  const MatrixShape& shape = weights.shape;
  const Sections& s = weights.sections;
  const auto at = [](size_t offset) { return static_cast<cl_long>(offset); };
  const int64_t group = shape.key.quantized() ? group_cols(shape) : shape.k;
  const std::optional<QuantKey>& key = weights.scheme.activation;
  // A group that is not a whole number of blocks is the only one: it covers all columns.
  const auto in_blocks = [](int64_t cols) {
    return static_cast<cl_int>(std::max<int64_t>((cols + kBlock - 1) / kBlock, 1));
  };
  return {weights.num_experts,
          at(s.bytes),
          at(s.scales),
          at(s.zero_points),
          at(s.bias),
          shape.n,
          shape.k,
          padded(shape.n, kRowStep),
          padded(shape.k, kBlock),
          form.scale_row,
          form.scale_group,
          static_cast<cl_int>(form.block_rows),
          in_blocks(group),
          shape.key.quantized(),
          !shape.key.symmetric,
          shape.bias,
          in_blocks(key ? group_cols(*key, shape.k) : shape.k)};
}

// The subgroup size of the device's matrix instructions: its smallest, 8 or 16 lanes.
int64_t lanes_of(const Queue& queue) {
  constexpr cl_device_info kSubGroupSizes = 0x4108;  // CL_DEVICE_SUB_GROUP_SIZES_INTEL
  std::array<size_t, 16> sizes{};
  size_t bytes = 0;
  const cl_int code =
      queue.cl->clGetDeviceInfo(queue.device, kSubGroupSizes, sizeof sizes, sizes.data(), &bytes);
  if (code != CL_SUCCESS) return 16;
  const auto end = sizes.begin() + bytes / sizeof(size_t);
  return std::find(sizes.begin(), end, 8u) != end ? 8 : 16;
}

// Compiler options of the kind of product: " -D X_I8 -D INTEGERS". matrix.cl explains them.
std::string product_options(const KernelWeights& weights, const OpenClForm& kernel) {
  const MatrixShape& shape = weights.shape;
  const std::optional<QuantKey>& key = weights.scheme.activation;
  std::string options = !key ? " -D X_BF16" : key->dtype == DType::kI8 ? " -D X_I8" : " -D X_E4M3";
  if (kernel.sums != OpenClForm::Sums::kFloats) {
    options += " -D INTEGERS";
    if (shape.key.dtype == DType::kI8 && !shape.key.symmetric) options += " -D ZERO_POINTS";
  }
  if (!shape.key.quantized() || num_groups(shape) <= 1) options += " -D ONE_GROUP";
  if (key && num_groups(*key, shape.k) > 1) options += " -D X_GROUPS";
  if (shape.k % kBlock == 0) options += " -D WHOLE_BLOCKS";
  return options;
}

// A kernel for `rows` rows of activations.
struct Variant {
  int64_t rows;
  KernelName name;
  cl_kernel kernel;
};

class MatrixLinear : public LinearKernel {
 public:
  MatrixLinear(const KernelWeights& weights, const MatrixForm& form, const Queue& queue)
      : weights_(weights),
        form_(form.kernel),
        queue_(queue),
        weight_option_(form.weight_option),
        shape_(shape_of(weights_, form)),
        emulated_(missing(GpuFeature::kMatrix, queue.features) != GpuFeature::kNone),
        lanes_(emulated_ ? emulated_lanes() : lanes_of(queue)) {}

  /// Compiles the kernels: a failure is reported when the layer is made.
  Status compile() {
    std::string options = str(weight_option_, product_options(weights_, form_),
                              " -D LANES=", lanes_, " -D TILES=", kTiles, " -D SPLITS=", kSplits);
    // Only tests emulate. With optimization, Intel's compiler for CPUs takes 11 s per program
    // instead of 0.3.
    if (emulated_) options += " -D EMULATED -cl-opt-disable";
    for (const int64_t rows : {8, 32}) {
      // 32 rows, and both parts of f16, need more registers than a thread has by default.
      const bool many = rows == 32 || weights_.shape.key.dtype == DType::kF16;
      const char* const registers = many && !emulated_ ? " -cl-intel-256-GRF-per-thread" : "";
      KernelName name{"matrix/matrix.cl", "matrix_linear",
                      str(options, " -D ROWS=", rows, registers)};
      MORACLE_TRY(const cl_kernel kernel, queue_.programs->make(name));
      variants_.push_back({rows, std::move(name), kernel});
    }
    return {};
  }

  Status run(const LinearCall& call, Stream stream) override {
    const GroupedRows& rows = *call.from<GroupedRows>();
    MORACLE_CHECK(check_floats({&call.out}));
    const int64_t experts = weights_.num_experts;
    if (rows.num_rows == 0 || experts == 0) return {};
    if (kernels_are_watched()) report({moracle::name(form_), weights_.shape});
    const int64_t mean = (rows.num_rows + experts - 1) / experts;
    const Variant& variant = variants_[mean <= 8 ? 0 : 1];
    // A group for each row finds its expert by search; with many rows most of these groups would
    // only search.
    const bool by_row = rows.num_rows <= 2 * experts;
    const int64_t strips = by_row ? 1 : (mean + variant.rows - 1) / variant.rows;
    const int64_t width = lanes_ * kTiles, tiles = (shape_.n + width - 1) / width;
    const int64_t groups = (by_row ? rows.num_rows : experts * strips) * tiles;
    return launch_kernel(queue_, stream, variant.name, variant.kernel, groups, lanes_ * kSplits,
                         weights_.buffer.as<std::byte>(), shape_, rows.x.values, rows.x.scales,
                         rows.x.num_scales, rows.row_index, rows.expert_offsets, call.out,
                         rows.num_rows, by_row, strips);
  }

 private:
  const KernelWeights& weights_;
  const OpenClForm form_;
  const Queue& queue_;  // owned by the device, which outlives its layers
  const char* weight_option_;
  Shape shape_;
  bool emulated_;
  int64_t lanes_;
  std::vector<Variant> variants_;
};

}  // namespace
}  // namespace matrix_linear

Result<std::unique_ptr<GroupedLinear>> make_matrix_linear(KernelWeights&& weights,
                                                          const MatrixForm& form, Device& device) {
  auto* const there = dynamic_cast<OpenClDevice*>(&device);
  if (there == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", str("backend ", form.backend), "an opencl device",
                 "it is " + device.name()};
  }
  auto linear = std::make_unique<GroupedLinear>(std::move(weights));
  MORACLE_CHECK(linear->add<matrix_linear::MatrixLinear>(form, there->queue()).compile());
  return linear;
}

}  // namespace opencl
}  // namespace moracle
