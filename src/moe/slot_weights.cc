// Layers whose local experts are slots (MoeAccess).
#include <algorithm>

#include "base/out_of_memory.h"
#include "base/scalar.h"
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
  if (plan.lora_rank != slots.lora_rank || plan.max_adapters != slots.max_adapters) {
    return refused(all, "slots planned for the adapters of the layer",
                   str("they are for ", slots.max_adapters, " of rank ", slots.lora_rank,
                       ", the layer is for ", plan.max_adapters, " of rank ", plan.lora_rank));
  }
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

// Uploads rows of the host's, which are f32, in the dtype of the device.
Status copy_rows(const Matrix& from, const Matrix& to, Device& device, Stream stream) {
  const auto count = static_cast<size_t>(from.rows * from.cols);
  if (from.dtype == to.dtype)
    return device.enqueue_upload(to.data, from.data, count * bits(to.dtype) / 8, stream);
  std::vector<uint16_t> rounded(count);
  const auto* const values = static_cast<const float*>(from.data);
  std::transform(values, values + count, rounded.begin(), [&](float value) {
    return to.dtype == DType::kF16 ? float_to_f16(value) : float_to_bf16(value);
  });
  return device.enqueue_upload(to.data, rounded.data(), count * sizeof(uint16_t), stream);
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

int64_t MoeAccess::expert_bytes(const FusedMoe& layer) {
  return static_cast<int64_t>(layer.state_->w13->weights().sections.bytes +
                              layer.state_->w2->weights().sections.bytes);
}

std::vector<ExpertMatrix> MoeAccess::matrices_of(const FusedMoe& all, const FusedMoe& slots,
                                                 std::span<const ExpertInSlot> experts) {
  const FusedMoe::State &from = *all.state_, &to = *slots.state_;
  std::vector<ExpertMatrix> matrices;
  const auto add = [&](const GroupedLinear& source, const GroupedLinear& target,
                       const MatrixPlan& plan) {
    const KernelWeights &packed = source.weights(), &out = target.weights();
    for (const auto& [local, slot] : experts) {
      // The shape of the plan: kernels may change that of their weights when they prepare them.
      matrices.push_back({packed.layout, &packed.shape, packed.expert(local),
                          to.plan.backend->layout, &plan.shape,
                          const_cast<std::byte*>(out.expert(slot))});
    }
  };
  add(*from.w13, *to.w13, to.plan.matrices[0]);
  add(*from.w2, *to.w2, to.plan.matrices[1]);
  return matrices;
}

Status MoeAccess::copy_slot(const FusedMoe& from, int64_t from_slot, FusedMoe& to, int64_t to_slot,
                            Stream stream) {
  const std::pair<const GroupedLinear*, const GroupedLinear*> matrices[] = {
      {from.state_->w13.get(), to.state_->w13.get()}, {from.state_->w2.get(), to.state_->w2.get()}};
  for (const auto& [source, target] : matrices) {
    const KernelWeights &packed = source->weights(), &out = target->weights();
    MORACLE_CHECK(to.state_->device().copy(const_cast<std::byte*>(out.expert(to_slot)),
                                           packed.expert(from_slot), packed.sections.bytes,
                                           stream));
  }
  return {};
}

Status MoeAccess::copy_adapters(FusedMoe& slots, int64_t slot, const FusedMoe& all, int64_t local,
                                Stream stream) {
  using namespace slot_weights;
  FusedMoe::State& to = *slots.state_;
  const FusedMoe::State& from = *all.state_;
  if (to.plan.adapter_bytes == 0) return {};
  MORACLE_TRY(const LayerLock lock, LayerLock::take(*to.workspace, stream));
  const int64_t in_slots = to.plan.experts.num_local(), here = from.plan.experts.num_local();
  const AdapterScratch &target = to.adapters, &source = from.adapters;
  const std::pair<const Matrix*, const Matrix*> stacked[] = {{&source.w13_a, &target.w13_a},
                                                             {&source.w13_b, &target.w13_b},
                                                             {&source.w2_a, &target.w2_a},
                                                             {&source.w2_b, &target.w2_b}};
  for (int64_t id = 0; id < to.plan.max_adapters; ++id) {
    for (const auto& [a, b] : stacked) {
      const int64_t rows = b->rows / (to.plan.max_adapters * in_slots);
      MORACLE_CHECK(copy_rows(a->slice((id * here + local) * rows, rows),
                              b->slice((id * in_slots + slot) * rows, rows), to.device(), stream));
    }
  }
  return {};
}

Status MoeAccess::slot_filled(FusedMoe& slots, int64_t slot, const FusedMoe& all, int64_t local,
                              Stream stream) {
  MORACLE_CHECK(copy_adapters(slots, slot, all, local, stream));
  FusedMoe::State& to = *slots.state_;
  const FusedMoe::State& from = *all.state_;
  MORACLE_TRY(const LayerLock lock, LayerLock::take(*to.workspace, stream));
  const std::pair<GroupedLinear*, const GroupedLinear*> matrices[] = {
      {to.w13.get(), from.w13.get()}, {to.w2.get(), from.w2.get()}};
  for (const auto& [linear, source] : matrices) {
    const KernelWeights& weights = linear->weights();
    if (weights.input_scales.bytes() > 0) {
      const float* const scale = source->weights().input_scales.as<float>() + local;
      MORACLE_CHECK(to.device().enqueue_upload(weights.input_scales.as<float>() + slot, scale,
                                               sizeof *scale, stream));
    }
    MORACLE_CHECK(linear->expert_replaced(slot, stream));
  }
  return {};
}

std::vector<std::shared_ptr<void>> MoeAccess::pin(const FusedMoe& all, Device& device) {
  std::vector<std::shared_ptr<void>> pinned;
  for (const GroupedLinear* linear : {all.state_->w13.get(), all.state_->w2.get()}) {
    const Buffer& buffer = linear->weights().buffer;
    pinned.push_back(kernel_device(device).pin(buffer.data(), buffer.bytes()));
  }
  return pinned;
}

void MoeAccess::share_map(FusedMoe& slots, const Buffer& map) {
  slots.state_->expert_map = Buffer(map.data(), map.bytes(), nullptr);
}

Status MoeAccess::map_slots(FusedMoe& slots, std::span<const int32_t> local, Stream stream) {
  FusedMoe::State& state = *slots.state_;
  MORACLE_TRY(const LayerLock lock, LayerLock::take(*state.workspace, stream));
  return state.device().enqueue_upload(state.expert_map.data(), local.data(), local.size_bytes(),
                                       stream);
}

}  // namespace moracle
