// Experts on the tokens of all ranks: prepared before they travelled, added while their results do.
#include "base/try.h"
#include "moe/checks.h"
#include "moe/layer_turn.h"
#include "moe/moe_access.h"
#include "moe/stage.h"

namespace moracle {

Rows MoeAccess::call_form(const FusedMoe& moe, int64_t num_tokens) {
  const FusedMoe::State& state = *moe.state_;
  const Rows form = input_form(moe);
  const bool fused = state.plan.matrices[0].kernel.fused.holds(num_tokens);
  return form.values.cols > 0 && fused ? state.fused_for(num_tokens)->prepared_form(num_tokens)
                                       : form;
}

Status MoeAccess::prepare(FusedMoe& moe, const Matrix& x, int64_t num_tokens, const Rows& to,
                          Stream stream) {
  const FusedMoe::State& state = *moe.state_;
  if (state.plan.matrices[0].kernel.fused.holds(num_tokens))
    return state.fused_for(num_tokens)->prepare(x, num_tokens, to, stream);
  return state.device().ops().quantize(x, *state.plan.layer.scheme.activation, to, stream);
}

bool MoeAccess::leaves_rows(const FusedMoe& moe) {
  return !moe.state_->plan.matrices[1].kernel.combines;
}

Status MoeAccess::apply(FusedMoe& moe, const GatheredCall& call, Stream stream) {
  const bool prepared = call.input.scales != nullptr;
  const Matrix& hidden = call.input.values;
  if (!prepared && !call.add)
    return moe.apply(hidden, call.topk_ids, call.topk_weights, call.output, stream);
  if (hidden.rows == 0) return {};
  const FusedMoe::State& state = *moe.state_;
  const Plan& plan = state.plan;
  MORACLE_TRY(const LayerTurn turn, LayerTurn::take(*state.workspace, stream));
  MORACLE_CHECK(check_workspace(*state.workspace, plan));
  const MoeScratch scratch = carve_moe(plan, state.workspace->data());
  const bool fused = plan.matrices[0].kernel.fused.holds(hidden.rows);
  const Rows* const input = prepared ? &call.input : nullptr;
  TopkWeights weights = call.topk_weights;
  Matrix x = hidden;
  if (!prepared) {
    MORACLE_TRY(x, state.input_of(hidden, weights, {}, fused, scratch, stream));
  }
  if (fused) {
    return state.fused_for(hidden.rows)
        ->run({x, call.topk_ids.data, weights.data, state.expert_map.as<int32_t>(), call.output,
               input, call.add},
              scratch, stream);
  }
  MORACLE_CHECK(state.device().ops().plan_rows(
      call.topk_ids.data, hidden.rows, plan.layer.top_k, plan.layer.num_experts,
      state.expert_map.as<int32_t>(), plan.experts.num_local(), scratch.rows, stream));
  return state.run_experts(x, scratch, {}, weights.data, call.output, stream, false, input,
                           call.add);
}

}  // namespace moracle
