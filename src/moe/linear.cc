#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/experts/matrix_share.h"
#include "kernels/kernel_device.h"
#include "moe/checks.h"
#include "moe/layer_lock.h"
#include "moe/stage.h"

namespace moracle {

struct Linear::State {
  Plan plan;
  std::shared_ptr<Workspace> workspace;
  std::unique_ptr<GroupedLinear> weights;

  /// Linear::make and Linear::pack, without the handling of standard-library exceptions.
  static Result<Linear> make(DescribedMatrix&& weights, const Selection& selection,
                             std::shared_ptr<Workspace> workspace, const Progress& progress);
  Result<PackedWeights> pack(DescribedMatrix&& from, const Progress& progress) const;
  Status check_call(const Matrix& x, const Matrix& y) const;
  Status multiply(const Matrix& x, const Matrix& y, Stream stream);
};

Linear::Linear(std::unique_ptr<State> state) : state_(std::move(state)) {}
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;
Linear::~Linear() = default;
const Plan& Linear::plan() const {
  return state_->plan;
}
int64_t Linear::weight_bytes() const {
  return static_cast<int64_t>(state_->weights->weights().buffer.bytes());
}

LayerSpec linear_spec(std::string name, const DescribedMatrix& weights) {
  LayerSpec spec;
  spec.name = std::move(name);
  spec.linear = true;
  spec.hidden_size = weights.shape().k;
  spec.intermediate_size = weights.shape().n;
  spec.scheme = weights.scheme();
  spec.group_index = weights.shape().group_index;
  spec.bias = weights.shape().bias;
  spec.set_matrices({weights.shape()});
  return spec;
}

Result<Linear> Linear::make(DescribedMatrix&& weights, const Selection& selection,
                            std::shared_ptr<Workspace> workspace, const Progress& progress) {
  return or_out_of_memory(selection.request.layer.name, [&] {
    return State::make(std::move(weights), selection, std::move(workspace), progress);
  });
}

Result<Linear> Linear::State::make(DescribedMatrix&& weights, const Selection& selection,
                                   std::shared_ptr<Workspace> workspace, const Progress& progress) {
  auto state = std::make_unique<State>();
  MORACLE_TRY(state->plan, selection.chosen());
  if (!state->plan.layer.same_but_name(linear_spec("", weights))) {
    return Error{ErrorKind::kInvalidArgument, "", state->plan.layer.name,
                 "a selection made for this layer", "it was made for another layer"};
  }
  state->workspace = std::move(workspace);
  Device& device = state->workspace->device();
  MORACLE_CHECK(check_device(state->plan, device));
  const Backend& backend = *state->plan.backend;
  MatrixShare::set_key(weights, state->plan.matrices[0].shape.key);
  MORACLE_TRY(KernelWeights packed, convert(std::move(weights), *backend.layout, device, progress));
  MORACLE_TRY(state->weights,
              backend.kernels->make(std::move(packed), *state->plan.matrices[0].kernel, device));
  MORACLE_CHECK(state->workspace->reserve(state->plan.workspace_bytes));
  return Linear(std::move(state));
}

Result<PackedWeights> Linear::pack(DescribedMatrix&& weights, const Progress& progress) const {
  return or_out_of_memory(state_->plan.layer.name,
                          [&] { return state_->pack(std::move(weights), progress); });
}

Result<PackedWeights> Linear::State::pack(DescribedMatrix&& from, const Progress& progress) const {
  auto packed = std::make_unique<PackedWeights::State>();
  packed->layer = linear_spec(plan.layer.name, from);
  if (!plan.layer.same_but_name(packed->layer)) {
    return Error{ErrorKind::kInvalidArgument, "", plan.layer.name,
                 "weights of the loaded layer, " + describe(plan.layer),
                 "it is " + describe(packed->layer)};
  }
  Device& device = workspace->device();
  packed->experts = plan.experts;
  packed->backend = plan.backend;
  packed->device = device.name();
  MatrixShare::set_key(from, plan.matrices[0].shape.key);
  MORACLE_TRY(KernelWeights matrix,
              convert(std::move(from), *plan.backend->layout, device, progress));
  packed->matrices.push_back(std::move(matrix));
  return PackedWeights(std::move(packed));
}

Status Linear::swap(PackedWeights&& weights, Stream stream) {
  Device& device = state_->workspace->device();
  MORACLE_CHECK(check_swap(weights.state_.get(), state_->plan, device));
  MORACLE_TRY(const LayerLock lock, LayerLock::take(*state_->workspace, stream));
  MORACLE_CHECK(replace(state_->weights->weights(), weights.state_->matrices[0], device, stream));
  MORACLE_CHECK(state_->weights->weights_replaced(stream));
  MORACLE_CHECK(device.synchronize(stream));
  const PackedWeights used_up = std::move(weights);
  return {};
}

Status Linear::State::check_call(const Matrix& x, const Matrix& y) const {
  const auto wrong = [&](std::string need, std::string fact) {
    return Error{ErrorKind::kInvalidArgument, "", plan.layer.name, std::move(need),
                 std::move(fact)};
  };
  const MatrixShape& shape = weights->weights().shape;
  if (x.cols != shape.k || y.cols != shape.n || x.rows != y.rows || x.rows < 0 ||
      x.rows > plan.max_num_tokens || x.stride < x.cols || y.stride < y.cols) {
    return wrong(str("x [tokens, ", shape.k, "] and y [tokens, ", shape.n, "] of at most ",
                     plan.max_num_tokens, " tokens"),
                 str("they are [", x.rows, ", ", x.cols, "] and [", y.rows, ", ", y.cols,
                     "] with strides ", x.stride, " and ", y.stride));
  }
  if (x.dtype != plan.activation_dtype ||
      (y.dtype != plan.activation_dtype && y.dtype != DType::kF32)) {
    return wrong(str("x and y in ", name(plan.activation_dtype), ", or y in f32"),
                 str("they are ", name(x.dtype), " and ", name(y.dtype)));
  }
  if (x.rows == 0) return {};
  MORACLE_CHECK(check_pointer(x, plan, "x"));
  return check_pointer(y, plan, "y");
}

// Multiplies rows as the caller has them, prepared by a kernel or by operations before it.
Status Linear::State::multiply(const Matrix& x, const Matrix& y, Stream stream) {
  const LinearScratch scratch = carve_linear(plan, workspace->data());
  const LinearCall raw{LinearCall::Raw{x, scratch.input}, y};
  if (weights->serves(raw)) return weights->run(raw, stream);
  Ops& ops = kernel_device(workspace->device()).ops();
  const std::optional<QuantKey>& key = plan.layer.scheme.activation;
  GroupedRows input{{}, nullptr, nullptr, x.rows};
  if (is_static(plan.layer.scheme)) {
    input.x = scratch.input.first(x.rows);
    MORACLE_CHECK(ops.quantize_static(x, nullptr, nullptr, 1,
                                      weights->weights().input_scales.as<float>(), *key, input.x,
                                      stream));
  } else {
    MORACLE_TRY(input.x, prepare(x, key, scratch.input, ops, stream));
  }
  MORACLE_TRY(const GroupedRows sorted,
              gather(input, weights->weights(), scratch.sorted_input, ops, stream));
  return weights->run({sorted, y}, stream);
}

Status Linear::apply(const ConstMatrix& x, const Matrix& y, Stream stream) {
  return apply({LinearCall::Raw{as_operand(x)}, y}, stream);
}

Status Linear::apply(const LinearCall& call, Stream stream) {
  State& state = *state_;
  MORACLE_CHECK(state.check_call(call.x(), call.out));
  if (call.x().rows == 0) return {};
  MORACLE_TRY(const LayerLock lock, LayerLock::take(*state.workspace, stream));
  MORACLE_CHECK(check_workspace(*state.workspace, state.plan));
  const bool product_only = call.from<LinearCall::Raw>() && call.to<LinearCall::Store>();
  if (!product_only && serves(call)) return state.weights->run(call, stream);
  return run_separately(
      call, kernel_device(state.workspace->device()).ops(), stream,
      [&](const Matrix& x, const Matrix& y) { return state.multiply(x, y, stream); });
}

bool Linear::serves(const LinearCall& call) const {
  if (call.from<NormedInput>() != nullptr) {
    // Columns that the kernel pads, or stores otherwise, are not those of the norm.
    const Matrix input = carve_linear(state_->plan, nullptr).input.values;
    const bool quantizes = state_->plan.layer.scheme.activation.has_value();
    if ((!quantizes && input.dtype != call.x().dtype) || input.cols != call.x().cols) return false;
  }
  return state_->weights->serves(call);
}

}  // namespace moracle
