// Layers of which host memory holds some experts, packed, and files the others (MoeAccess).
#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "checkpoint/experts/matrix_share.h"
#include "kernels/weights/convert_expert.h"
#include "moe/checks.h"
#include "moe/layer_lock.h"
#include "moe/moe_access.h"

namespace moracle {
namespace expert_pool {
namespace {

Error refused(const Plan& plan, std::string need, std::string fact) {
  return {ErrorKind::kUnsupported, "", plan.layer.name, std::move(need), std::move(fact)};
}

Status check_weights(const DescribedWeights& weights, const Plan& plan) {
  if (plan.layer.same_but_name(weights.spec)) return {};
  return Error{ErrorKind::kInvalidArgument, "", plan.layer.name,
               "weights of the planned layer, " + describe(plan.layer),
               "it is " + describe(weights.spec)};
}

void set_keys(DescribedWeights& weights, const Plan& plan) {
  MatrixShare::set_key(weights.w13, plan.matrices[0].shape.key);
  MatrixShare::set_key(weights.w2, plan.matrices[1].shape.key);
}

Result<KernelWeights> empty(const DescribedMatrix& from, const Plan& plan, Device& device) {
  const Layout& layout = *plan.backend->layout;
  const int64_t count = plan.experts.num_local();
  KernelWeights to{&layout, from.scheme(), from.shape(), count, layout.sections(from.shape()), {},
                   {}};
  MORACLE_TRY(to.buffer, device.allocate(to.sections.bytes * static_cast<size_t>(count)));
  if (!from.input_scales().empty()) {
    MORACLE_TRY(to.input_scales, device.allocate(static_cast<size_t>(count) * sizeof(float)));
  }
  return to;
}

}  // namespace
}  // namespace expert_pool

Result<FusedMoe> MoeAccess::make_pool(DescribedWeights& weights, const Selection& selection,
                                      std::shared_ptr<Workspace> workspace) {
  using namespace expert_pool;
  return or_out_of_memory(weights.spec.name, [&]() -> Result<FusedMoe> {
    auto state = std::make_unique<FusedMoe::State>();
    MORACLE_TRY(state->plan, selection.chosen());
    const Plan& plan = state->plan;
    MORACLE_CHECK(check_weights(weights, plan));
    MORACLE_CHECK(check_routing_known(plan.layer));
    if (plan.adapter_bytes > 0)
      return refused(plan, "host memory for all experts, because adapters lie beside them",
                     str("it is for ", plan.experts.num_local(), " of ", plan.layer.num_experts));
    state->workspace = std::move(workspace);
    Device& device = state->device();
    MORACLE_CHECK(check_device(plan, device));
    if (!device.host_visible())
      return refused(plan, "a device whose memory the host sees", "it is " + device.name());
    set_keys(weights, plan);
    std::vector<KernelWeights> packed;
    for (const DescribedMatrix* matrix : {&weights.w13, &weights.w2}) {
      MORACLE_TRY(KernelWeights to, empty(*matrix, plan, device));
      packed.push_back(std::move(to));
    }
    MORACLE_TRY(FusedMoe pool, FusedMoe::State::finish(std::move(state), std::move(packed)));
    const std::vector<int32_t> none(pool.plan().layer.num_experts, -1);
    MORACLE_TRY(pool.state_->expert_map, device.allocate(none.size() * sizeof(int32_t)));
    MORACLE_CHECK(map_slots(pool, none, {}));
    return pool;
  });
}

Device& MoeAccess::device_of(const FusedMoe& layer) {
  return layer.state_->device();
}

Status MoeAccess::read_expert(FusedMoe& pool, const DescribedWeights& weights, bool is_w13,
                              int64_t expert, int64_t at, ThreadPool& threads) {
  const GroupedLinear& linear = is_w13 ? *pool.state_->w13 : *pool.state_->w2;
  return convert_expert(is_w13 ? weights.w13 : weights.w2, expert, linear.weights(), at, threads);
}

Status MoeAccess::expert_read(FusedMoe& pool, const DescribedWeights& weights, int64_t expert,
                              int64_t at) {
  FusedMoe::State& state = *pool.state_;
  MORACLE_TRY(const LayerLock lock, LayerLock::take(*state.workspace, {}));
  for (const bool is_w13 : {true, false}) {
    GroupedLinear& linear = is_w13 ? *state.w13 : *state.w2;
    const std::vector<float>& scales = (is_w13 ? weights.w13 : weights.w2).input_scales();
    if (!scales.empty()) linear.weights().input_scales.as<float>()[at] = scales[expert];
    MORACLE_CHECK(linear.expert_replaced(at, {}));
  }
  return {};
}

Result<PackedWeights> MoeAccess::check_all(const FusedMoe& pool, DescribedWeights&& weights,
                                           const Progress& progress) {
  using namespace expert_pool;
  const FusedMoe::State& state = *pool.state_;
  MORACLE_CHECK(check_weights(weights, state.plan));
  set_keys(weights, state.plan);
  ThreadPool& threads = kernel_device(state.device()).host_threads();
  const int64_t total = weights.w13.source_bytes() + weights.w2.source_bytes();
  const int64_t count = state.plan.layer.num_experts;
  const auto drop = [](const CanonicalMatrix&, int64_t) {};
  for (int64_t e = 0; e < count; ++e) {
    MORACLE_CHECK(weights.w13.read_slices(e, threads, drop));
    MORACLE_CHECK(weights.w2.read_slices(e, threads, drop));
    if (progress && !progress(total * (e + 1) / count, total))
      return Error{ErrorKind::kCancelled, "", "loading", "", "stopped on request"};
  }
  auto checked = std::make_unique<PackedWeights::State>();
  checked->layer = weights.spec;
  checked->described = std::make_unique<DescribedWeights>(std::move(weights));
  return FusedMoe::State::packed(std::move(checked));
}

Result<DescribedWeights> MoeAccess::take_described(const FusedMoe& pool, PackedWeights&& weights) {
  PackedWeights::State* const state = FusedMoe::State::state_of(weights);
  const Plan& plan = pool.plan();
  if (state == nullptr || state->described == nullptr || !plan.layer.same_but_name(state->layer)) {
    return Error{ErrorKind::kInvalidArgument, "", plan.layer.name,
                 "weights that pack() of this layer gave",
                 state == nullptr ? "they were used already" : "they are another layer's"};
  }
  const PackedWeights used_up = std::move(weights);
  return std::move(*state->described);
}

}  // namespace moracle
