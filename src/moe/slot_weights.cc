// Layers whose local experts are slots (MoeAccess).
#include <algorithm>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "layout/unpack.h"
#include "moe/checks.h"
#include "moe/layer_lock.h"
#include "moe/moe_access.h"

namespace moracle {
namespace slot_weights {
namespace {

Error refused(const FusedMoe& all, std::string need, std::string fact) {
  return {ErrorKind::kUnsupported, "", all.plan().layer.name, std::move(need), std::move(fact)};
}

Status check(const FusedMoe& all, const Plan& slots) {
  const Plan& plan = all.plan();
  if (!plan.layer.same_but_name(slots.layer)) {
    return Error{ErrorKind::kInvalidArgument, "", plan.layer.name,
                 "slots planned for this layer, " + describe(plan.layer),
                 "they were planned for " + describe(slots.layer)};
  }
  if (plan.adapter_bytes > 0 || slots.adapter_bytes > 0)
    return refused(all, "a layer without adapters, because slots hold none", "it has some");
  if (plan.format == ActivationFormat::kBatched || slots.format == ActivationFormat::kBatched)
    return refused(all, "a plan for tokens with ids", "it is for batched activations");
  return {};
}

// Memory for the slots of one matrix, like `from`.
Result<KernelWeights> empty(const KernelWeights& from, const MatrixPlan& matrix, const Plan& plan,
                            Device& device) {
  const Layout& layout = *plan.backend->layout;
  const int64_t num_slots = plan.experts.num_local();
  KernelWeights to{&layout, from.scheme, matrix.shape, num_slots, layout.sections(matrix.shape),
                   {},      {}};
  MORACLE_TRY(to.buffer, device.allocate(to.sections.bytes * num_slots));
  if (from.input_scales.bytes() > 0) {
    MORACLE_TRY(to.input_scales, device.allocate(num_slots * sizeof(float)));
  }
  return to;
}

// Rows of a slice of the matrix. A slice takes about as long as a GPU's attention of one layer.
int64_t slice_rows(const KernelWeights& weights) {
  constexpr int64_t kCodes = 1 << 18;
  const int64_t step = row_step(weights.shape);
  return std::max(kCodes / std::max<int64_t>(weights.shape.k, 1) / step * step, step);
}
int64_t slices_of(const KernelWeights& weights) {
  return (weights.shape.n + slice_rows(weights) - 1) / slice_rows(weights);
}

}  // namespace
}  // namespace slot_weights

Result<FusedMoe> MoeAccess::make_slots(const FusedMoe& all, const Selection& selection,
                                       std::shared_ptr<Workspace> workspace) {
  using namespace slot_weights;
  const FusedMoe::State& from = *all.state_;
  return or_out_of_memory(from.plan.layer.name, [&]() -> Result<FusedMoe> {
    auto state = std::make_unique<FusedMoe::State>();
    MORACLE_TRY(state->plan, selection.chosen());
    const Plan& plan = state->plan;
    MORACLE_CHECK(check(all, plan));
    state->workspace = std::move(workspace);
    Device& device = state->device();
    MORACLE_CHECK(check_device(plan, device));
    const KernelWeights* const sources[] = {&from.w13->weights(), &from.w2->weights()};
    std::vector<KernelWeights> packed;
    for (size_t i = 0; i < std::size(sources); ++i) {
      const KernelWeights& source = *sources[i];
      if (!from.device().host_visible() ||
          !repacks(*source.layout, source.shape, *plan.backend->layout, plan.matrices[i].shape)) {
        return refused(all,
                       str("a backend in host memory whose weights can be packed again for ",
                           plan.backend->name),
                       str("it is ", from.plan.backend->name, " with layout ", source.layout->name,
                           " on ", from.device().name()));
      }
      MORACLE_TRY(KernelWeights to, empty(source, plan.matrices[i], plan, device));
      packed.push_back(std::move(to));
    }
    MORACLE_TRY(FusedMoe slots, FusedMoe::State::finish(std::move(state), std::move(packed)));
    const std::vector<int32_t> none(plan.experts.num_experts(), -1);
    MORACLE_TRY(slots.state_->expert_map, device.allocate(none.size() * sizeof(int32_t)));
    MORACLE_CHECK(map_slots(slots, none, {}));
    return slots;
  });
}

int64_t MoeAccess::slot_bytes(const FusedMoe& slots) {
  return static_cast<int64_t>(slots.state_->w13->weights().sections.bytes +
                              slots.state_->w2->weights().sections.bytes);
}

int64_t MoeAccess::num_slot_slices(const FusedMoe& all) {
  return slot_weights::slices_of(all.state_->w13->weights()) +
         slot_weights::slices_of(all.state_->w2->weights());
}

Status MoeAccess::pack_for_slot(const FusedMoe& all, int64_t expert, int64_t slice,
                                const FusedMoe& slots, std::byte* out) {
  const FusedMoe::State &from = *all.state_, &to = *slots.state_;
  const int64_t of_w13 = slot_weights::slices_of(from.w13->weights());
  const bool is_w13 = slice < of_w13;
  const KernelWeights& weights = (is_w13 ? *from.w13 : *from.w2).weights();
  if (!is_w13) {
    slice -= of_w13;
    out += to.w13->weights().sections.bytes;
  }
  const int64_t rows = slot_weights::slice_rows(weights), begin = slice * rows;
  const PackedRows of_slice{weights.layout, &weights.shape,
                            weights.expert(from.plan.experts.local()[expert]), begin,
                            std::min(begin + rows, weights.shape.n)};
  // The shape of the plan: kernels may change that of their weights when they prepare them.
  return repack(of_slice, *to.plan.backend->layout, to.plan.matrices[is_w13 ? 0 : 1].shape,
                kernel_device(all.state_->device()).host_threads(), out);
}

Status MoeAccess::fill_slot(FusedMoe& slots, int64_t slot, const FusedMoe& all, int64_t expert,
                            const std::byte* packed, Stream stream) {
  FusedMoe::State& to = *slots.state_;
  const FusedMoe::State& from = *all.state_;
  const int64_t local = from.plan.experts.local()[expert];
  MORACLE_TRY(const LayerLock lock, LayerLock::take(*to.workspace, stream));
  const std::pair<GroupedLinear*, const GroupedLinear*> matrices[] = {
      {to.w13.get(), from.w13.get()}, {to.w2.get(), from.w2.get()}};
  for (const auto& [linear, source] : matrices) {
    const KernelWeights& weights = linear->weights();
    const size_t bytes = weights.sections.bytes;
    MORACLE_CHECK(
        to.device().upload(const_cast<std::byte*>(weights.expert(slot)), packed, bytes, stream));
    packed += bytes;
    if (weights.input_scales.bytes() > 0) {
      const float* const scale = source->weights().input_scales.as<float>() + local;
      MORACLE_CHECK(to.device().enqueue_upload(weights.input_scales.as<float>() + slot, scale,
                                               sizeof *scale, stream));
    }
    MORACLE_CHECK(linear->expert_replaced(slot, stream));
  }
  return {};
}

Status MoeAccess::map_slots(FusedMoe& slots, std::span<const int32_t> local, Stream stream) {
  FusedMoe::State& state = *slots.state_;
  MORACLE_TRY(const LayerLock lock, LayerLock::take(*state.workspace, stream));
  return state.device().enqueue_upload(state.expert_map.data(), local.data(), local.size_bytes(),
                                       stream);
}

}  // namespace moracle
