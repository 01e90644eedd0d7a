#include "base/text.h"
#include "base/try.h"
#include "moe/stage.h"
#include "moracle/moe.h"

namespace moracle {

struct FusedMoe::State {
  Plan plan;
  std::shared_ptr<Workspace> workspace;
  std::unique_ptr<GroupedLinear> w13;
  std::unique_ptr<GroupedLinear> w2;
};

namespace {

Status check(const Matrix& m, const char* what, const Plan& plan) {
  const LayerSpec& layer = plan.layer;
  const bool is_float = m.dtype == DType::kF32 || m.dtype == DType::kBF16 || m.dtype == DType::kF16;
  if (is_float && m.cols == layer.hidden_size && m.rows <= plan.max_num_tokens &&
      m.stride >= m.cols) {
    return {};
  }
  return Error{
      ErrorKind::kInvalidArgument, "", str(layer.name, ": ", what),
      str("at most ", plan.max_num_tokens, " rows of ", layer.hidden_size,
          " columns in f32, bf16 or f16"),
      str("it is ", name(m.dtype), " [", m.rows, ", ", m.cols, "] with stride ", m.stride)};
}

}  // namespace

FusedMoe::FusedMoe(std::unique_ptr<State> state) : state_(std::move(state)) {}
FusedMoe::FusedMoe(FusedMoe&&) noexcept = default;
FusedMoe& FusedMoe::operator=(FusedMoe&&) noexcept = default;
FusedMoe::~FusedMoe() = default;
const Plan& FusedMoe::plan() const {
  return state_->plan;
}

int64_t FusedMoe::weight_bytes() const {
  return static_cast<int64_t>(state_->w13->weights().buffer.bytes() +
                              state_->w2->weights().buffer.bytes());
}

Result<FusedMoe> FusedMoe::make(DescribedWeights&& weights, const Selection& selection,
                                std::shared_ptr<Device> device, const Progress& progress) {
  return make(std::move(weights), selection, std::make_shared<Workspace>(std::move(device)),
              progress);
}

Result<FusedMoe> FusedMoe::make(DescribedWeights&& weights, const Selection& selection,
                                std::shared_ptr<Workspace> workspace, const Progress& progress) {
  auto state = std::make_unique<State>();
  MORACLE_TRY(state->plan, selection.chosen());
  if (!state->plan.layer.same_but_name(weights.spec)) {
    return Error{ErrorKind::kInvalidArgument, "", weights.spec.name,
                 "a selection made for this layer", "it was made for " + state->plan.layer.name};
  }
  state->workspace = std::move(workspace);
  Device& device = state->workspace->device();
  MORACLE_CHECK(check_device(state->plan, device));
  const Backend& backend = *state->plan.backend;
  const int64_t first_bytes = weights.w13.source_bytes(),
                total = first_bytes + weights.w2.source_bytes();
  auto part = [&](int64_t before) -> Progress {
    if (!progress) return {};
    return [&progress, before, total](int64_t done, int64_t) {
      return progress(before + done, total);
    };
  };
  MORACLE_TRY(KernelWeights w13, convert(std::move(weights.w13), *backend.layout, device, part(0)));
  MORACLE_TRY(KernelWeights w2,
              convert(std::move(weights.w2), *backend.layout, device, part(first_bytes)));
  MORACLE_TRY(state->w13, backend.kernels->make(std::move(w13), device));
  MORACLE_TRY(state->w2, backend.kernels->make(std::move(w2), device));
  MORACLE_CHECK(state->workspace->reserve(state->plan.workspace_bytes));
  return FusedMoe(std::move(state));
}

Status FusedMoe::apply(const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                       const Matrix& output, Stream stream) {
  const Plan& plan = state_->plan;
  const LayerSpec& layer = plan.layer;
  MORACLE_CHECK(check(hidden, "hidden", plan));
  MORACLE_CHECK(check(output, "output", plan));
  if (hidden.rows != output.rows) {
    return Error{ErrorKind::kInvalidArgument, "", layer.name, "as many rows of output as of hidden",
                 str("there are ", output.rows, " and ", hidden.rows)};
  }
  const int64_t tokens = hidden.rows, rows = tokens * layer.top_k;
  if (tokens == 0) return {};
  Device& device = state_->workspace->device();
  Ops& ops = device.ops();
  GroupedLinear &w13 = *state_->w13, &w2 = *state_->w2;
  const std::optional<QuantKey>& key = layer.scheme.activation;
  const MoeRooms rooms = carve_moe(plan, state_->workspace->data());

  // prepare: each token is quantized once, whatever the number of its experts; only stored scales,
  // which belong to experts, need every row by itself
  Matrix x = hidden;
  if (key && hidden.dtype != plan.activation_dtype) {
    x = rooms.hidden.slice(0, tokens);
    MORACLE_CHECK(ops.convert(hidden, x, stream));
  }
  MORACLE_CHECK(
      ops.plan_rows(topk_ids.data, tokens, layer.top_k, layer.num_experts, rooms.rows, stream));
  auto quantize_static = [&](const Matrix& from, const int32_t* row_index,
                             const GroupedLinear& linear, const Rows& to) {
    return ops.quantize_static(from, row_index, rooms.rows.expert_offsets, layer.num_experts,
                               linear.weights().input_scales.as<float>(), *key, to, stream);
  };
  GroupedRows input{{}, rooms.rows.row_token, rooms.rows.expert_offsets, rows};
  if (is_static(layer.scheme)) {
    input.x = rooms.input.first(rows);
    input.row_index = nullptr;
    MORACLE_CHECK(quantize_static(x, rooms.rows.row_token, w13, input.x));
  } else {
    MORACLE_TRY(input.x, prepare(x, key, rooms.input, ops, stream));
  }

  // experts
  const Matrix gate_up = rooms.gate_up.slice(0, rows), activated = rooms.activated.slice(0, rows);
  const Matrix y = rooms.y.slice(0, rows);
  MORACLE_CHECK(w13.run(input, gate_up, stream));
  MORACLE_CHECK(
      ops.activate(layer.activation, layer.intermediate_size, gate_up, activated, stream));
  GroupedRows intermediate{{activated, nullptr, 0}, nullptr, rooms.rows.expert_offsets, rows};
  if (is_static(layer.scheme)) {
    intermediate.x = rooms.intermediate.first(rows);
    MORACLE_CHECK(quantize_static(activated, nullptr, w2, intermediate.x));
  } else if (key) {
    MORACLE_TRY(intermediate.x, prepare(activated, key, rooms.intermediate, ops, stream));
  }
  MORACLE_CHECK(w2.run(intermediate, y, stream));

  // finalize
  return ops.combine(y, rooms.rows.slot_row, topk_weights.data, layer.top_k, output, stream);
}

}  // namespace moracle
