#include "base/text.h"
#include "base/try.h"
#include "moe/fused_moe_state.h"

namespace moracle {

struct Linear::State {
  Plan plan;
  std::shared_ptr<Workspace> workspace;
  std::unique_ptr<GroupedLinear> weights;
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
  auto state = std::make_unique<State>();
  MORACLE_TRY(state->plan, selection.chosen());
  if (!state->plan.layer.same_but_name(linear_spec("", weights))) {
    return Error{ErrorKind::kInvalidArgument, "", state->plan.layer.name,
                 "a selection made for this layer", "it was made for another"};
  }
  state->workspace = std::move(workspace);
  Device& device = state->workspace->device();
  MORACLE_CHECK(check_device(state->plan, device));
  const Backend& backend = *state->plan.backend;
  MORACLE_TRY(KernelWeights packed, convert(std::move(weights), *backend.layout, device, progress));
  MORACLE_TRY(state->weights,
              backend.kernels->make(std::move(packed), state->plan.matrices[0].kernel, device));
  MORACLE_CHECK(state->workspace->reserve(state->plan.workspace_bytes));
  return Linear(std::move(state));
}

Result<PackedWeights> Linear::pack(DescribedMatrix&& weights, const Progress& progress) const {
  const Plan& plan = state_->plan;
  auto packed = std::make_unique<PackedWeights::State>();
  packed->layer = linear_spec(plan.layer.name, weights);
  if (!plan.layer.same_but_name(packed->layer)) {
    return Error{ErrorKind::kInvalidArgument, "", plan.layer.name,
                 "the layer that is loaded, " + describe(plan.layer),
                 "it is " + describe(packed->layer)};
  }
  MORACLE_TRY(KernelWeights matrix, convert(std::move(weights), *plan.backend->layout,
                                            state_->workspace->device(), progress));
  packed->matrices.push_back(std::move(matrix));
  return PackedWeights(std::move(packed));
}

Status Linear::swap(PackedWeights&& weights, Stream stream) {
  const PackedWeights packed = std::move(weights);
  MORACLE_CHECK(check_swap(packed.state_->layer, state_->plan.layer));
  Device& device = state_->workspace->device();
  MORACLE_CHECK(replace(state_->weights->weights(), packed.state_->matrices[0], device, stream));
  return device.synchronize(stream);
}

Status Linear::apply(const Matrix& x, const Matrix& y, Stream stream) {
  const Plan& plan = state_->plan;
  const KernelWeights& weights = state_->weights->weights();
  if (x.cols != weights.shape.k || y.cols != weights.shape.n || x.rows != y.rows ||
      x.rows > plan.max_num_tokens) {
    return Error{ErrorKind::kInvalidArgument, "", plan.layer.name,
                 str("x [tokens, ", weights.shape.k, "] and y [tokens, ", weights.shape.n,
                     "] of at most ", plan.max_num_tokens, " tokens"),
                 str("they are [", x.rows, ", ", x.cols, "] and [", y.rows, ", ", y.cols, "]")};
  }
  if (x.rows == 0) return {};
  Ops& ops = state_->workspace->device().ops();
  const std::optional<QuantKey>& key = plan.layer.scheme.activation;
  const LinearRooms rooms = carve_linear(plan, state_->workspace->data());
  GroupedRows input{{}, nullptr, nullptr, x.rows};
  if (is_static(plan.layer.scheme)) {
    input.x = rooms.input.first(x.rows);
    MORACLE_CHECK(ops.quantize_static(x, nullptr, nullptr, 1, weights.input_scales.as<float>(),
                                      *key, input.x, stream));
  } else {
    MORACLE_TRY(input.x, prepare(x, key, rooms.input, ops, stream));
  }
  MORACLE_TRY(const GroupedRows sorted, gather(input, weights, rooms.sorted_input, ops, stream));
  return state_->weights->run(sorted, y, stream);
}

}  // namespace moracle
