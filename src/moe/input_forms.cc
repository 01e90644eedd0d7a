// Forms in which experts read activations, so that another rank can bring tokens to them.
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
