// Experts on rows that another rank's exchange has sorted already.
#include "base/text.h"
#include "base/try.h"
#include "moe/checks.h"
#include "moe/layer_turn.h"
#include "moe/moe_access.h"

namespace moracle {

Result<Rows> MoeAccess::batch_form(const FusedMoe& moe) {
  const Plan& plan = moe.state_->plan;
  const LayerSpec& layer = plan.layer;
  const auto refuse = [&](std::string need, std::string fact) {
    return Error{ErrorKind::kUnsupported, "", layer.name, std::move(need), std::move(fact)};
  };
  if (plan.lora_rank > 0)
    return refuse("experts without adapters", str("the plan has ", plan.max_adapters));
  if (layer.routing.weight_on_input)
    return refuse("weights on results of experts", "this family weights their input");
  if (is_static(layer.scheme))
    return refuse("scales that travel with their rows", "the checkpoint stores one per expert");
  if (plan.format != ActivationFormat::kStandard)
    return refuse("a plan for tokens", "the plan is for batched activations");
  if (plan.matrices[1].kernel.combines)
    return refuse("results of each expert",
                  str("GEMM 2 of ", plan.backend->name, " adds those of a token"));
  const Rows form = carve_moe(plan, nullptr).input;
  if (layer.scheme.activation) return form;
  if (form.values.dtype != plan.activation_dtype || form.values.cols != layer.hidden_size)
    return refuse(str("rows of ", layer.hidden_size, " columns in ", name(plan.activation_dtype)),
                  str("GEMM 1 of ", plan.backend->name, " reads ", form.values.cols, " in ",
                      name(form.values.dtype)));
  return form;
}

Status MoeAccess::apply_batch(FusedMoe& moe, const ArrivedBatch& batch, Stream stream) {
  const FusedMoe::State& state = *moe.state_;
  MORACLE_TRY(const LayerTurn turn, LayerTurn::take(*state.workspace, stream));
  MORACLE_CHECK(check_workspace(*state.workspace, state.plan));
  MoeScratch scratch = carve_moe(state.plan, state.workspace->data());
  scratch.rows = batch.plan;
  MORACLE_CHECK(state.device().ops().plan_batched_rows(
      batch.num_tokens, state.plan.experts.num_local(), batch.expert_rows, scratch.rows, stream));
  return state.run_rows(batch.rows, scratch, batch.results, stream);
}

}  // namespace moracle
