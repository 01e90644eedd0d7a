// prepare → experts → finalize.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "moe/checks.h"
#include "moe/layer_turn.h"
#include "moe/moe_access.h"
#include "moe/stage.h"

namespace moracle {
namespace {

Status check(const Matrix& m, const char* what, const Plan& plan, int64_t least_rows) {
  const LayerSpec& layer = plan.layer;
  const bool is_float = m.dtype == DType::kF32 || m.dtype == DType::kBF16 || m.dtype == DType::kF16;
  if (is_float && m.cols == layer.hidden_size && m.rows >= least_rows &&
      m.rows <= plan.max_slots() && m.stride >= m.cols) {
    return {};
  }
  return Error{
      ErrorKind::kInvalidArgument, "", str(layer.name, ": ", what),
      str(least_rows > 0 ? "" : "at most ", plan.max_slots(), " rows of ", layer.hidden_size,
          " columns in f32, bf16 or f16"),
      str("it is ", name(m.dtype), " [", m.rows, ", ", m.cols, "] with stride ", m.stride)};
}

Status check_call(const Plan& plan, const Matrix& hidden, const Matrix& output, LoraIds lora_ids,
                  ActivationFormat format) {
  auto wrong = [&](std::string need, std::string fact) {
    return Error{ErrorKind::kInvalidArgument, "", plan.layer.name, std::move(need),
                 std::move(fact)};
  };
  if (plan.format != format) {
    const bool batched = plan.format == ActivationFormat::kBatched;
    return wrong(batched ? "a call of apply_batched, as planned" : "a call of apply, as planned",
                 batched ? "apply was called" : "apply_batched was called");
  }
  const int64_t least = format == ActivationFormat::kBatched ? plan.max_slots() : 0;
  MORACLE_CHECK(check(hidden, "hidden", plan, least));
  MORACLE_CHECK(check(output, "output", plan, least));
  if (hidden.rows != output.rows)
    return wrong("the same number of rows in output and hidden",
                 str("they have ", output.rows, " and ", hidden.rows));
  if (lora_ids.data != nullptr && plan.lora_rank == 0)
    return wrong("a plan with adapters", "the plan has none");
  return {};
}

Status check_memory(const Plan& plan, const Matrix& hidden, const Matrix& output, LoraIds lora_ids,
                    const Workspace& workspace) {
  MORACLE_CHECK(check_pointer(hidden, plan, "hidden"));
  MORACLE_CHECK(check_pointer(output, plan, "output"));
  if (lora_ids.data != nullptr)
    MORACLE_CHECK(check_pointer(lora_ids.data, alignof(int32_t), plan, "lora_ids"));
  return check_workspace(workspace, plan);
}

}  // namespace

Status FusedMoe::State::add_adapters(const Matrix& x, const int32_t* row_index, bool is_w13,
                                     const MoeScratch& scratch, LoraIds lora_ids, const Matrix& y,
                                     Stream stream) const {
  if (lora_ids.data == nullptr) return {};
  LoraTable table{is_w13 ? adapters.w13_a : adapters.w2_a,
                  is_w13 ? adapters.w13_b : adapters.w2_b,
                  plan.experts.num_local(),
                  1,
                  plan.lora_rank,
                  y.cols};
  if (is_w13) table.parts = plan.layer.w13_rows() / plan.layer.intermediate_size;
  return device().ops().add_lora(x, row_index, scratch.rows, lora_ids.data, plan.max_adapters,
                                 table, y, stream);
}

Status FusedMoe::State::run_experts(const Matrix& x, const MoeScratch& scratch, LoraIds lora_ids,
                                    const float* topk_weights, const Matrix& output, Stream stream,
                                    bool each_slot, const Rows* prepared,
                                    const AddRows& add) const {
  Ops& ops = device().ops();
  const int64_t rows = x.rows * plan.top_k();
  // Quantize each token once, for all of its experts. Only static scales belong to experts: they
  // need each row quantized by itself.
  GroupedRows input{{}, scratch.rows.row_token, scratch.rows.expert_offsets, rows};
  if (prepared != nullptr) {
    input.x = *prepared;
  } else if (is_static(plan.layer.scheme)) {
    input.x = scratch.input.first(rows);
    input.row_index = nullptr;
    MORACLE_CHECK(quantize_static(x, scratch.rows.row_token, scratch, *w13, input.x, stream));
  } else {
    MORACLE_TRY(input.x, prepare(x, plan.layer.scheme.activation, scratch.input, ops, stream));
  }
  if (!plan.matrices[1].kernel.combines) {
    const Matrix y = scratch.y.slice(0, rows);
    MORACLE_TRY(const GroupedRows intermediate, run_w13(x, input, scratch, lora_ids, stream));
    MORACLE_CHECK(w2->run(intermediate, y, stream));
    MORACLE_CHECK(add_adapters(scratch.activated.slice(0, rows), nullptr, false, scratch, lora_ids,
                               y, stream));
    if (add) return add({y, scratch.rows.slot_row, topk_weights, x.rows, plan.top_k()});
    return ops.combine(y, scratch.rows.slot_row, topk_weights, each_slot ? 1 : plan.top_k(), output,
                       stream);
  }
  const bool in_place = output.dtype == scratch.y.dtype;
  const Matrix sum = in_place ? output : scratch.y.slice(0, x.rows);
  Combination combination{each_slot ? scratch.rows.row_slot : scratch.rows.row_token,
                          scratch.rows.row_slot, topk_weights};
  for (int64_t left = rows; left > 0 || !combination.add; left -= input.num_rows) {
    input.num_rows = next_part(input.first_row, left, scratch.rows.expert_offsets);
    MORACLE_TRY(const GroupedRows intermediate, run_w13(x, input, scratch, lora_ids, stream));
    MORACLE_CHECK(w2->run_combined(intermediate, combination, sum, stream));
    combination.add = true;
    input.first_row += input.num_rows;
  }
  return in_place ? Status() : ops.convert(sum, output, stream);
}

Status FusedMoe::State::run_rows(const Rows& x, const MoeScratch& scratch, const Matrix& y,
                                 Stream stream) const {
  const GroupedRows input{x, scratch.rows.row_token, scratch.rows.expert_offsets, y.rows};
  MORACLE_TRY(const GroupedRows intermediate, run_w13(x.values, input, scratch, {}, stream));
  return w2->run(intermediate, y, stream);
}

int64_t FusedMoe::State::next_part(int64_t first, int64_t& left, const int32_t* offsets) const {
  if (left <= plan.part_rows) return left;
  // Only host kernels split rows into parts, so the host may read the offsets here.
  const int32_t* const end = offsets + plan.experts.num_local() + 1;
  left = std::min(left, end[-1] - first);
  if (left <= plan.part_rows) return left;
  const int64_t whole_experts = std::upper_bound(offsets, end, first + plan.part_rows)[-1] - first;
  return whole_experts > 0 ? whole_experts : plan.part_rows;
}

Status FusedMoe::State::quantize_static(const Matrix& from, const int32_t* row_index,
                                        const MoeScratch& scratch, const GroupedLinear& linear,
                                        const Rows& to, Stream stream) const {
  return device().ops().quantize_static(
      from, row_index, scratch.rows.expert_offsets, plan.experts.num_local(),
      linear.weights().input_scales.as<float>(), *plan.layer.scheme.activation, to, stream);
}

Result<GroupedRows> FusedMoe::State::run_w13(const Matrix& x, const GroupedRows& input,
                                             const MoeScratch& scratch, LoraIds lora_ids,
                                             Stream stream) const {
  const LayerSpec& layer = plan.layer;
  const std::optional<QuantKey>& key = layer.scheme.activation;
  Ops& ops = device().ops();
  const int64_t rows = input.num_rows;
  MORACLE_TRY(const GroupedRows sorted,
              gather(input, w13->weights(), scratch.sorted_input, ops, stream));
  const Matrix activated = scratch.activated.slice(0, rows);
  const bool quantized = plan.matrices[0].kernel.quantizes;
  if (quantized) {
    MORACLE_CHECK(w13->run_quantized(sorted, layer.activation, activated, *key,
                                     scratch.intermediate.first(rows), stream));
  } else if (plan.matrices[0].kernel.activates) {
    MORACLE_CHECK(w13->run_activated(sorted, layer.activation, activated, stream));
  } else {
    const Matrix gate_up{scratch.gate_up.data, scratch.gate_up.dtype, rows, scratch.gate_up.cols,
                         scratch.gate_up.stride};
    MORACLE_CHECK(w13->run(sorted, gate_up, stream));
    MORACLE_CHECK(
        add_adapters(x, scratch.rows.row_token, true, scratch, lora_ids, gate_up, stream));
    MORACLE_CHECK(
        ops.activate(layer.activation, layer.intermediate_size, gate_up, activated, stream));
  }
  GroupedRows intermediate{{activated, nullptr, 0},
                           nullptr,
                           scratch.rows.expert_offsets,
                           input.num_rows,
                           input.first_row};
  if (quantized) {
    intermediate.x = scratch.intermediate.first(rows);
  } else if (is_static(layer.scheme)) {
    intermediate.x = scratch.intermediate.first(rows);
    MORACLE_CHECK(quantize_static(activated, nullptr, scratch, *w2, intermediate.x, stream));
  } else if (key) {
    MORACLE_TRY(intermediate.x, prepare(activated, key, scratch.intermediate, ops, stream));
  }
  return gather(intermediate, w2->weights(), scratch.sorted_intermediate, ops, stream);
}

Result<Matrix> FusedMoe::State::input_of(const Matrix& hidden, TopkWeights& topk_weights,
                                         LoraIds lora_ids, bool is_fused, const MoeScratch& scratch,
                                         Stream stream) const {
  Ops& ops = device().ops();
  Matrix x = hidden;
  if (plan.layer.routing.weight_on_input) {
    x = scratch.hidden.slice(0, hidden.rows);
    MORACLE_CHECK(ops.scale_rows(hidden, topk_weights.data, x, stream));
    topk_weights.data = nullptr;
  } else if (hidden.dtype != plan.activation_dtype &&
             (plan.layer.scheme.activation || lora_ids.data || is_fused)) {
    x = scratch.hidden.slice(0, hidden.rows);
    MORACLE_CHECK(ops.convert(hidden, x, stream));
  }
  return x;
}

Status FusedMoe::apply(const ConstMatrix& input, TopkIds topk_ids, TopkWeights topk_weights,
                       const Matrix& output, Stream stream, LoraIds lora_ids) {
  const Matrix hidden = as_operand(input);
  const Plan& plan = state_->plan;
  const LayerSpec& layer = plan.layer;
  MORACLE_CHECK(check_call(plan, hidden, output, lora_ids, ActivationFormat::kStandard));
  if (hidden.rows == 0) return {};
  MORACLE_CHECK(check_pointer(topk_ids.data, alignof(int32_t), plan, "topk_ids"));
  MORACLE_CHECK(check_pointer(topk_weights.data, alignof(float), plan, "topk_weights"));
  MORACLE_TRY(const LayerTurn turn, LayerTurn::take(*state_->workspace, stream));
  MORACLE_CHECK(check_memory(plan, hidden, output, lora_ids, *state_->workspace));
  Ops& ops = state_->device().ops();
  const MoeScratch scratch = carve_moe(plan, state_->workspace->data());
  const bool fused = plan.matrices[0].kernel.fused.holds(hidden.rows);
  MORACLE_TRY(const Matrix x,
              state_->input_of(hidden, topk_weights, lora_ids, fused, scratch, stream));
  if (fused) {
    const ExpertsCall call{x, topk_ids.data, topk_weights.data, state_->expert_map.as<int32_t>(),
                           output};
    return state_->fused->run(call, scratch, stream);
  }
  MORACLE_CHECK(ops.plan_rows(topk_ids.data, hidden.rows, layer.top_k, layer.num_experts,
                              state_->expert_map.as<int32_t>(), plan.experts.num_local(),
                              scratch.rows, stream));
  return state_->run_experts(x, scratch, lora_ids, topk_weights.data, output, stream);
}

Status FusedMoe::apply_chunked(const ConstMatrix& input, TopkIds topk_ids, TopkWeights topk_weights,
                               const Matrix& output, Stream stream, LoraIds lora_ids) {
  const Plan& plan = state_->plan;
  const Matrix hidden = as_operand(input);
  const int64_t most = plan.max_num_tokens, top_k = plan.layer.top_k;
  if (hidden.rows <= most) return apply(input, topk_ids, topk_weights, output, stream, lora_ids);
  if (hidden.rows != output.rows) {
    return Error{ErrorKind::kInvalidArgument, "", plan.layer.name,
                 "the same number of rows in output and hidden",
                 str("they have ", output.rows, " and ", hidden.rows)};
  }
  for (int64_t first = 0; first < hidden.rows; first += most) {
    const int64_t count = std::min(most, hidden.rows - first);
    const auto from = [first](auto* values, int64_t each) {
      return values == nullptr ? nullptr : values + first * each;
    };
    MORACLE_CHECK(apply(hidden.slice(first, count), {from(topk_ids.data, top_k)},
                        {from(topk_weights.data, top_k)}, output.slice(first, count), stream,
                        {from(lora_ids.data, 1)}));
  }
  return {};
}

Status FusedMoe::apply_rows(const ConstMatrix& input, TopkIds topk_ids, TopkWeights topk_weights,
                            const Matrix& rows, Stream stream, LoraIds lora_ids) {
  const Matrix hidden = as_operand(input);
  const Plan& plan = state_->plan;
  const LayerSpec& layer = plan.layer;
  MORACLE_CHECK(check_call(plan, hidden, hidden, lora_ids, ActivationFormat::kStandard));
  if (rows.dtype != plan.activation_dtype || rows.cols != layer.hidden_size ||
      rows.stride != rows.cols || rows.rows != hidden.rows * layer.top_k) {
    return Error{ErrorKind::kInvalidArgument, "", layer.name,
                 str("rows of ", name(plan.activation_dtype), " [", hidden.rows * layer.top_k, ", ",
                     layer.hidden_size, "] without gaps"),
                 str("they are ", name(rows.dtype), " [", rows.rows, ", ", rows.cols, "]")};
  }
  if (hidden.rows == 0) return {};
  MORACLE_CHECK(check_pointer(topk_ids.data, alignof(int32_t), plan, "topk_ids"));
  MORACLE_CHECK(check_pointer(topk_weights.data, alignof(float), plan, "topk_weights"));
  MORACLE_TRY(const LayerTurn turn, LayerTurn::take(*state_->workspace, stream));
  MORACLE_CHECK(check_memory(plan, hidden, rows, lora_ids, *state_->workspace));
  const MoeScratch scratch = carve_moe(plan, state_->workspace->data());
  MORACLE_TRY(const Matrix x,
              state_->input_of(hidden, topk_weights, lora_ids, false, scratch, stream));
  MORACLE_CHECK(state_->device().ops().plan_rows(
      topk_ids.data, hidden.rows, layer.top_k, layer.num_experts, state_->expert_map.as<int32_t>(),
      plan.experts.num_local(), scratch.rows, stream));
  return state_->run_experts(x, scratch, lora_ids, nullptr, rows, stream, true);
}

Status FusedMoe::apply_batched(const ConstMatrix& input, ExpertNumTokens num_tokens,
                               const Matrix& output, Stream stream, LoraIds lora_ids) {
  const Matrix hidden = as_operand(input);
  const Plan& plan = state_->plan;
  MORACLE_CHECK(check_call(plan, hidden, output, lora_ids, ActivationFormat::kBatched));
  if (hidden.rows == 0) return {};
  MORACLE_CHECK(check_pointer(num_tokens.data, alignof(int32_t), plan, "num_tokens"));
  MORACLE_TRY(const LayerTurn turn, LayerTurn::take(*state_->workspace, stream));
  MORACLE_CHECK(check_memory(plan, hidden, output, lora_ids, *state_->workspace));
  Ops& ops = state_->device().ops();
  const MoeScratch scratch = carve_moe(plan, state_->workspace->data());
  Matrix x = hidden;
  if (hidden.dtype != plan.activation_dtype && (plan.layer.scheme.activation || lora_ids.data)) {
    x = scratch.hidden.slice(0, hidden.rows);
    MORACLE_CHECK(ops.convert(hidden, x, stream));
  }
  MORACLE_CHECK(ops.plan_batched_rows(num_tokens.data, plan.experts.num_local(),
                                      plan.max_num_tokens, scratch.rows, stream));
  // Each slot has one expert. Finalize copies the slot's row back unweighted; a slot without a row
  // becomes 0.
  return state_->run_experts(x, scratch, lora_ids, nullptr, output, stream);
}

Rows MoeAccess::input_form(const FusedMoe& moe) {
  const Plan& plan = moe.state_->plan;
  const LayerSpec& layer = plan.layer;
  if (!layer.scheme.activation || is_static(layer.scheme) || layer.routing.weight_on_input ||
      plan.lora_rank > 0)
    return {};
  return carve_moe(plan, nullptr).input;
}

Status MoeAccess::apply(FusedMoe& moe, const Rows& input, TopkIds topk_ids,
                        TopkWeights topk_weights, const Matrix& output, Stream stream) {
  MORACLE_CHECK(check(output, "output", moe.state_->plan, 0));
  return run(moe, input, topk_ids, topk_weights.data, output, stream, false);
}

Status MoeAccess::apply_rows(FusedMoe& moe, const Rows& input, TopkIds topk_ids, TopkWeights,
                             const Matrix& rows, Stream stream) {
  return run(moe, input, topk_ids, nullptr, rows, stream, true);
}

Status MoeAccess::run(FusedMoe& moe, const Rows& input, TopkIds topk_ids, const float* topk_weights,
                      const Matrix& output, Stream stream, bool each_slot) {
  const FusedMoe::State& state = *moe.state_;
  const Plan& plan = state.plan;
  const int64_t num_tokens = input.values.rows;
  if (num_tokens == 0) return {};
  MORACLE_TRY(const LayerTurn turn, LayerTurn::take(*state.workspace, stream));
  MORACLE_CHECK(check_memory(plan, output, output, {}, *state.workspace));
  const MoeScratch scratch = carve_moe(plan, state.workspace->data());
  MORACLE_CHECK(state.device().ops().plan_rows(
      topk_ids.data, num_tokens, plan.layer.top_k, plan.layer.num_experts,
      state.expert_map.as<int32_t>(), plan.experts.num_local(), scratch.rows, stream));
  return state.run_experts(input.values, scratch, {}, topk_weights, output, stream, each_slot,
                           &input);
}

}  // namespace moracle
