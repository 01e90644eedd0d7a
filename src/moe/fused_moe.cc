// Builds one layer's experts as planned. Weights are read once.
#include "base/out_of_memory.h"
#include "base/try.h"
#include "checkpoint/experts/matrix_share.h"
#include "moe/checks.h"
#include "moe/layer_lock.h"
#include "moe/moe_access.h"

namespace moracle {
namespace {

// Reports the progress of one part of the work, which begins at `before` of `total`.
Progress partial_progress(const Progress& progress, int64_t before, int64_t total) {
  if (!progress) return {};
  return
      [&progress, before, total](int64_t done, int64_t) { return progress(before + done, total); };
}

// The experts of `plan` that a layer with the experts of another map has.
PackedExperts packed_there(const GroupedLinear& linear, const ExpertMap& there, const Plan& plan,
                           const DescribedMatrix& source) {
  const KernelWeights& weights = linear.weights();
  const bool same = weights.layout == plan.backend->layout && weights.shape.n == source.shape().n &&
                    weights.shape.k == source.shape().k;
  PackedExperts packed;
  if (!same) return packed;
  packed.weights = &weights;
  for (const int32_t expert : plan.experts.global()) packed.at.push_back(there.local()[expert]);
  return packed;
}

// Packs w13 and w2 of the local experts.
Result<std::vector<KernelWeights>> pack_both(DescribedWeights&& weights, const Plan& plan,
                                             Device& device, const Progress& progress,
                                             const PackedExperts& old_w13 = {},
                                             const PackedExperts& old_w2 = {}) {
  weights.w13.keep(plan.experts.global());
  weights.w2.keep(plan.experts.global());
  MatrixShare::set_key(weights.w13, plan.matrices[0].shape.key);
  MatrixShare::set_key(weights.w2, plan.matrices[1].shape.key);
  const Layout& layout = *plan.backend->layout;
  const int64_t first = weights.w13.source_bytes(), total = first + weights.w2.source_bytes();
  std::vector<KernelWeights> packed;
  const bool together =
      plan.matrices[0].kernel->activates && is_gated(plan.layer.activation.function);
  MORACLE_TRY(KernelWeights w13,
              convert(std::move(weights.w13), layout, device, partial_progress(progress, 0, total),
                      together ? 2 : 1, old_w13));
  packed.push_back(std::move(w13));
  MORACLE_TRY(KernelWeights w2, convert(std::move(weights.w2), layout, device,
                                        partial_progress(progress, first, total), 1, old_w2));
  packed.push_back(std::move(w2));
  return packed;
}

Status upload_expert_map(const ExpertMap& experts, Buffer& to, Device& device) {
  const std::vector<int32_t>& map = experts.local();
  MORACLE_TRY(to, device.allocate(map.size() * sizeof(int32_t)));
  MORACLE_CHECK(device.upload(to.data(), map.data(), to.bytes()));
  return device.synchronize();
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
  return or_out_of_memory(weights.spec.name, [&] {
    return State::make(std::move(weights), selection, std::move(workspace), progress);
  });
}

Result<FusedMoe> MoeAccess::make_moved(DescribedWeights&& weights, const Selection& selection,
                                       const FusedMoe& old) {
  const FusedMoe::State& from = *old.state_;
  if (from.plan.adapter_bytes > 0) {
    return Error{ErrorKind::kUnsupported, "", weights.spec.name, "a layer without adapters",
                 "it has some"};
  }
  return or_out_of_memory(weights.spec.name, [&] {
    return FusedMoe::State::make(std::move(weights), selection, from.workspace, {}, &from);
  });
}

Result<FusedMoe> FusedMoe::State::make(DescribedWeights&& weights, const Selection& selection,
                                       std::shared_ptr<Workspace> workspace,
                                       const Progress& progress, const State* old) {
  auto state = std::make_unique<State>();
  MORACLE_TRY(state->plan, selection.chosen());
  const Plan& plan = state->plan;
  if (!plan.layer.same_but_name(weights.spec)) {
    return Error{ErrorKind::kInvalidArgument, "", weights.spec.name,
                 "a selection made for this layer, " + describe(weights.spec),
                 "it was made for " + plan.layer.name + ", " + describe(plan.layer)};
  }
  MORACLE_CHECK(check_routing_known(plan.layer));
  state->workspace = std::move(workspace);
  Device& device = state->device();
  MORACLE_CHECK(check_device(plan, device));
  PackedExperts old_w13, old_w2;
  if (old != nullptr) {
    old_w13 = packed_there(*old->w13, old->plan.experts, plan, weights.w13);
    old_w2 = packed_there(*old->w2, old->plan.experts, plan, weights.w2);
  }
  MORACLE_TRY(std::vector<KernelWeights> packed,
              pack_both(std::move(weights), plan, device, progress, old_w13, old_w2));
  return finish(std::move(state), std::move(packed));
}

Result<FusedMoe> FusedMoe::State::finish(std::unique_ptr<State> state,
                                         std::vector<KernelWeights> packed) {
  const Plan& plan = state->plan;
  Device& device = state->device();
  const Kernels& kernels = *plan.backend->kernels;
  MORACLE_TRY(state->w13, kernels.make(std::move(packed[0]), *plan.matrices[0].kernel, device));
  MORACLE_TRY(state->w2, kernels.make(std::move(packed[1]), *plan.matrices[1].kernel, device));
  if (plan.matrices[0].kernel->fuses()) {
    MORACLE_TRY(state->fused, kernels.fuse(*state->w13, *state->w2, plan, device));
  }
  if (!plan.experts.is_identity())
    MORACLE_CHECK(upload_expert_map(plan.experts, state->expert_map, device));
  if (plan.adapter_bytes > 0) {
    MORACLE_TRY(state->adapters_buffer, device.allocate(plan.adapter_bytes));
    state->adapters = carve_adapters(plan, state->adapters_buffer.as<std::byte>());
  }
  MORACLE_CHECK(state->workspace->reserve(plan.workspace_bytes));
  state->error_scope = kernel_device(device).ops().error_scopes().add(plan.layer.name);
  return FusedMoe(std::move(state));
}

FusedMoe::State::~State() {
  if (error_scope != 0) kernel_device(device()).ops().error_scopes().remove(error_scope);
}

FusedExperts* FusedMoe::State::fused_for(int64_t num_tokens) const {
  for (const auto& kernel : fused)
    if (kernel->serves(num_tokens)) return kernel.get();
  return nullptr;
}

Result<PackedWeights> FusedMoe::pack(DescribedWeights&& weights, const Progress& progress) const {
  return or_out_of_memory(weights.spec.name,
                          [&] { return state_->pack(std::move(weights), progress); });
}

Result<PackedWeights> FusedMoe::State::pack(DescribedWeights&& weights,
                                            const Progress& progress) const {
  if (!plan.layer.same_but_name(weights.spec)) {
    return Error{ErrorKind::kInvalidArgument, "", weights.spec.name,
                 "weights of the loaded layer, " + describe(plan.layer),
                 "it is " + describe(weights.spec)};
  }
  auto packed = std::make_unique<PackedWeights::State>();
  packed->layer = weights.spec;
  packed->experts = plan.experts;
  packed->backend = plan.backend;
  packed->device = device().name();
  MORACLE_TRY(packed->matrices, pack_both(std::move(weights), plan, device(), progress));
  return PackedWeights(std::move(packed));
}

PackedWeights FusedMoe::State::packed(std::unique_ptr<PackedWeights::State> state) {
  return PackedWeights(std::move(state));
}

PackedWeights::State* FusedMoe::State::state_of(const PackedWeights& weights) {
  return weights.state_.get();
}

Status FusedMoe::swap(PackedWeights&& weights, Stream stream) {
  Device& device = state_->device();
  MORACLE_CHECK(check_swap(weights.state_.get(), state_->plan, device));
  MORACLE_TRY(const LayerLock lock, LayerLock::take(*state_->workspace, stream));
  const std::vector<KernelWeights>& fresh = weights.state_->matrices;
  MORACLE_CHECK(replace(state_->w13->weights(), fresh[0], device, stream));
  MORACLE_CHECK(replace(state_->w2->weights(), fresh[1], device, stream));
  MORACLE_CHECK(state_->w13->weights_replaced(stream));
  MORACLE_CHECK(state_->w2->weights_replaced(stream));
  MORACLE_CHECK(device.synchronize(stream));
  const PackedWeights used_up = std::move(weights);
  return {};
}

}  // namespace moracle
