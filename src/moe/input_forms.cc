// Forms in which experts read activations, so that another rank can bring tokens to them.
#include "base/text.h"
#include "kernels/kernel_device.h"
#include "moe/fused_moe_state.h"
#include "moe/moe_access.h"

namespace moracle {

Rows ready_form(const Plan& plan) {
  const LayerSpec& layer = plan.layer;
  if (!layer.scheme.activation || is_static(layer.scheme) || layer.routing.weight_on_input ||
      plan.lora_rank > 0)
    return {};
  return carve_moe(plan, nullptr).input;
}

Result<Rows> sorted_form(const Plan& plan) {
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
  if (plan.matrices[1].kernel->combines)
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

Status MoeAccess::run(FusedMoe& moe, ExpertsCall call, Stream stream) {
  return moe.state_->run(std::move(call), stream);
}

Rows MoeAccess::prepared_form(const FusedMoe& moe, int64_t num_tokens) {
  const FusedMoe::State& state = *moe.state_;
  const Rows form = ready_form(state.plan);
  const bool fused = state.plan.matrices[0].kernel->fuses(num_tokens);
  return form.values.cols > 0 && fused ? state.fused_for(num_tokens)->prepared_form(num_tokens)
                                       : form;
}

Status MoeAccess::prepare(FusedMoe& moe, const Matrix& x, int64_t num_tokens, const Rows& to,
                          Stream stream) {
  const FusedMoe::State& state = *moe.state_;
  if (state.plan.matrices[0].kernel->fuses(num_tokens))
    return state.fused_for(num_tokens)->prepare(x, num_tokens, to, stream);
  return kernel_device(state.device())
      .ops()
      .quantize(x, *state.plan.layer.scheme.activation, to, stream);
}

}  // namespace moracle
