// The experts and the router.
#include "base/try.h"
#include "c_api/arguments.h"
#include "c_api/handles.h"

namespace moracle::c_api {
namespace {

Result<moracle_moe*> make_moe(moracle_layer* layer, const moracle_selection* selection,
                              moracle_device* device, moracle_progress progress, void* user) {
  MORACLE_CHECK(check_given(layer, "layer"));
  MORACLE_CHECK(check_given(selection, "selection"));
  MORACLE_CHECK(check_given(device, "device"));
  if (!layer->weights) return used_up(layer->spec);
  // Check the plan first: an error must not consume the weights.
  MORACLE_TRY([[maybe_unused]] const Plan plan, selection->value.chosen());
  Progress go_on;
  if (progress != nullptr) {
    go_on = [progress, user](int64_t done, int64_t total) {
      return progress(done, total, user) != 0;
    };
  }
  DescribedWeights weights = *std::move(layer->weights);
  layer->weights.reset();
  MORACLE_TRY(FusedMoe moe,
              FusedMoe::make(std::move(weights), selection->value, device->workspace, go_on));
  return new moracle_moe{std::move(moe)};
}

Status apply(moracle_moe* moe, const moracle_moe_call* from) {
  MORACLE_CHECK(check_given(moe, "moe"));
  MORACLE_TRY(const moracle_moe_call call, read_struct(from, "call"));
  MORACLE_TRY(const DType in, dtype_of(call.hidden_dtype, "call.hidden"));
  MORACLE_TRY(const DType out, dtype_of(call.output_dtype, "call.output"));
  const int64_t size = moe->value.plan().layer.hidden_size;
  const ConstMatrix hidden{call.hidden, in, call.num_tokens, size,
                           call.hidden_stride == 0 ? size : call.hidden_stride};
  const Matrix output{call.output, out, call.num_tokens, size,
                      call.output_stride == 0 ? size : call.output_stride};
  return moe->value.apply(hidden, {call.topk_ids}, {call.topk_weights}, output, {call.stream});
}

Status run_router(moracle_device* device, const moracle_routing* routing,
                  const moracle_route_call* from) {
  MORACLE_CHECK(check_given(device, "device"));
  MORACLE_TRY(const Routing how, routing_of(routing));
  MORACLE_TRY(const moracle_route_call call, read_struct(from, "call"));
  const Matrix logits{call.logits, device->value->activation_dtype(), call.num_tokens,
                      call.num_experts,
                      call.logits_stride == 0 ? call.num_experts : call.logits_stride};
  return route(*device->value, logits, how, call.top_k, {call.correction_bias, call.expert_scales},
               call.topk_ids, call.topk_weights, {call.stream});
}

}  // namespace
}  // namespace moracle::c_api

namespace c_api = moracle::c_api;

moracle_status moracle_moe_make(moracle_layer* layer, const moracle_selection* selection,
                                moracle_device* device, moracle_progress progress, void* user,
                                moracle_moe** out, moracle_error** error) {
  return c_api::guarded(out, error,
                        [&] { return c_api::make_moe(layer, selection, device, progress, user); });
}
int64_t moracle_moe_weight_bytes(const moracle_moe* moe) {
  return moe == nullptr ? 0 : moe->value.weight_bytes();
}
void moracle_moe_free(moracle_moe* moe) {
  delete moe;
}

moracle_status moracle_moe_apply(moracle_moe* moe, const moracle_moe_call* call,
                                 moracle_error** error) {
  return c_api::guarded(error, [&] { return c_api::apply(moe, call); });
}
moracle_status moracle_route(moracle_device* device, const moracle_routing* routing,
                             const moracle_route_call* call, moracle_error** error) {
  return c_api::guarded(error, [&] { return c_api::run_router(device, routing, call); });
}
