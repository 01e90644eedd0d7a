// Making one layer's experts: what the plan says, from weights that are read once.
#include "base/try.h"
#include "moe/fused_moe_state.h"

namespace moracle {
namespace {

// Progress of a part of the work that begins at `before` of `total`.
Progress part(const Progress& progress, int64_t before, int64_t total) {
  if (!progress) return {};
  return
      [&progress, before, total](int64_t done, int64_t) { return progress(before + done, total); };
}

// w13 and w2 of the experts that are here.
Result<std::vector<KernelWeights>> pack_both(DescribedWeights&& weights, const Plan& plan,
                                             Device& device, const Progress& progress) {
  weights.w13.keep(plan.experts.global());
  weights.w2.keep(plan.experts.global());
  const Layout& layout = *plan.backend->layout;
  const int64_t first = weights.w13.source_bytes(), total = first + weights.w2.source_bytes();
  std::vector<KernelWeights> packed;
  const bool together =
      plan.matrices[0].kernel.activates && is_gated(plan.layer.activation.function);
  MORACLE_TRY(KernelWeights w13, convert(std::move(weights.w13), layout, device,
                                         part(progress, 0, total), together ? 2 : 1));
  packed.push_back(std::move(w13));
  MORACLE_TRY(KernelWeights w2,
              convert(std::move(weights.w2), layout, device, part(progress, first, total)));
  packed.push_back(std::move(w2));
  return packed;
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
  const Plan& plan = state->plan;
  if (!plan.layer.same_but_name(weights.spec)) {
    return Error{ErrorKind::kInvalidArgument, "", weights.spec.name,
                 "a selection made for this layer, " + describe(weights.spec),
                 "it was made for " + plan.layer.name + ", " + describe(plan.layer)};
  }
  state->workspace = std::move(workspace);
  Device& device = state->device();
  MORACLE_CHECK(check_device(plan, device));
  MORACLE_TRY(std::vector<KernelWeights> packed,
              pack_both(std::move(weights), plan, device, progress));
  const Kernels& kernels = *plan.backend->kernels;
  MORACLE_TRY(state->w13, kernels.make(std::move(packed[0]), plan.matrices[0].kernel, device));
  MORACLE_TRY(state->w2, kernels.make(std::move(packed[1]), plan.matrices[1].kernel, device));
  if (!plan.experts.is_identity()) {
    const std::vector<int32_t>& map = plan.experts.local();
    MORACLE_TRY(state->expert_map, device.allocate(map.size() * sizeof(int32_t)));
    MORACLE_CHECK(device.upload(state->expert_map.data(), map.data(), state->expert_map.bytes()));
    MORACLE_CHECK(device.synchronize());
  }
  if (plan.adapter_bytes > 0) {
    MORACLE_TRY(state->adapters_buffer, device.allocate(plan.adapter_bytes));
    state->adapters = carve_adapters(plan, state->adapters_buffer.as<std::byte>());
  }
  MORACLE_CHECK(state->workspace->reserve(plan.workspace_bytes));
  return FusedMoe(std::move(state));
}

Result<PackedWeights> FusedMoe::pack(DescribedWeights&& weights, const Progress& progress) const {
  const Plan& plan = state_->plan;
  if (!plan.layer.same_but_name(weights.spec)) {
    return Error{ErrorKind::kInvalidArgument, "", weights.spec.name,
                 "the layer that is loaded, " + describe(plan.layer),
                 "it is " + describe(weights.spec)};
  }
  auto packed = std::make_unique<PackedWeights::State>();
  packed->layer = weights.spec;
  MORACLE_TRY(packed->matrices, pack_both(std::move(weights), plan, state_->device(), progress));
  return PackedWeights(std::move(packed));
}

Status FusedMoe::swap(PackedWeights&& weights, Stream stream) {
  const PackedWeights packed = std::move(weights);
  MORACLE_CHECK(check_swap(packed.state_->layer, state_->plan.layer));
  Device& device = state_->device();
  const std::vector<KernelWeights>& fresh = packed.state_->matrices;
  MORACLE_CHECK(replace(state_->w13->weights(), fresh[0], device, stream));
  MORACLE_CHECK(replace(state_->w2->weights(), fresh[1], device, stream));
  return device.synchronize(stream);  // before the packed ones go
}

}  // namespace moracle
