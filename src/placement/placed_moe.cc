// One layer's experts on two devices. A call goes this way:
//
//   ids, weights, activations    to the host, which waits for them
//   choices of experts in slots  one apply of the device with the slots, enqueued
//   all others                   one apply of the host, meanwhile
//   the host's part              to the device with the slots, and added there
//
// While the host waits for the ids, it packs a slice of an expert that is on its way into a slot. A
// slot's bytes change only while no map lists the slot, so that no call reads them.
#include <algorithm>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "kernels/ops.h"
#include "moe/checks.h"
#include "placement/placed_moe_state.h"

namespace moracle {

PlacedMoe::PlacedMoe(std::unique_ptr<State> state) : state_(std::move(state)) {}
PlacedMoe::PlacedMoe(PlacedMoe&&) noexcept = default;
PlacedMoe& PlacedMoe::operator=(PlacedMoe&&) noexcept = default;
PlacedMoe::~PlacedMoe() = default;

Result<PlacedMoe> PlacedMoe::make(DescribedWeights&& weights, const Selection& all,
                                  const Selection& slots, std::shared_ptr<DevicePair> devices,
                                  const Progress& progress) {
  const std::string layer = weights.spec.name;
  return or_out_of_memory(layer, [&]() -> Result<PlacedMoe> {
    DevicePair::State& shared = *devices->state_;
    MORACLE_TRY(const Plan plan, all.chosen());
    if (!plan.experts.is_identity()) {
      return Error{ErrorKind::kUnsupported, "", layer, "all experts of the layer on the host",
                   str("it has ", plan.experts.num_local(), " of ", plan.experts.num_experts())};
    }
    MORACLE_TRY(FusedMoe on_host, FusedMoe::make(std::move(weights), all, shared.host, progress));
    MORACLE_TRY(FusedMoe in_slots, MoeAccess::make_slots(on_host, slots, shared.slots));
    MORACLE_CHECK(shared.reserve(in_slots.plan(), MoeAccess::slot_bytes(in_slots)));
    return PlacedMoe(
        std::make_unique<State>(std::move(on_host), std::move(in_slots), std::move(devices)));
  });
}

// The host's part crosses as whole rows. FusedMoe checks the rest.
Status PlacedMoe::State::check(const Matrix& hidden, const Matrix& output) const {
  const Plan& plan = slots.plan();
  const int64_t most = std::min(plan.max_num_tokens, all.plan().max_num_tokens);
  const auto fits = [&](const Matrix& m) {
    return m.dtype == plan.activation_dtype && m.cols == plan.layer.hidden_size &&
           m.stride == m.cols && m.rows == hidden.rows && m.rows <= most;
  };
  if (fits(hidden) && fits(output)) return {};
  return Error{ErrorKind::kInvalidArgument, "", plan.layer.name,
               str("hidden and output in ", name(plan.activation_dtype), " [at most ", most, ", ",
                   plan.layer.hidden_size, "] without gaps"),
               str("they are ", name(hidden.dtype), " [", hidden.rows, ", ", hidden.cols, "] and ",
                   name(output.dtype), " [", output.rows, ", ", output.cols, "] with strides ",
                   hidden.stride, " and ", output.stride)};
}

PlacedMoe::State::Split PlacedMoe::State::split(std::span<int32_t> ids) {
  Split split;
  last.assign(ids.begin(), ids.end());
  for (int32_t& id : ids) {
    if (id < 0 || id >= table.num_experts()) {
      id = -1;  // the device with the slots reports those that are not -1
    } else if (local[id] >= 0) {
      id = -1;
      ++split.in_slots;
    } else {
      ++split.on_host;
    }
  }
  counts.hits += split.in_slots;
  counts.misses += split.on_host;
  return split;
}

Status PlacedMoe::State::apply(const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                               const Matrix& output, Stream stream) {
  DevicePair::State& s = shared();
  Device& device = s.device();
  const Plan& plan = slots.plan();
  const int64_t choices = hidden.rows * plan.layer.top_k;
  const size_t row_bytes = plan.layer.hidden_size * bits(hidden.dtype) / 8;
  const size_t bytes = hidden.rows * row_bytes;
  // The memory between the devices serves one layer at a time.
  const DeviceLock lock = device.lock();
  auto* const ids = s.ids.as<int32_t>();
  MORACLE_CHECK(device.download(ids, topk_ids.data, choices * sizeof(int32_t), stream));
  MORACLE_CHECK(
      device.download(s.weights.data(), topk_weights.data, choices * sizeof(float), stream));
  MORACLE_CHECK(device.download(s.hidden.data(), hidden.data, bytes, stream));
  MORACLE_CHECK(pack_pending(s));
  MORACLE_CHECK(device.synchronize(stream));
  MORACLE_CHECK(arrive_pending(s, stream));
  const Split parts = split({ids, static_cast<size_t>(choices)});
  policy.observe(last);

  // Enqueue first: the device works while the host computes. Without its part, it still reports
  // wrong ids and writes zeros.
  MORACLE_CHECK(slots.apply(hidden, topk_ids, topk_weights, output, stream));
  if (parts.on_host == 0) return {};
  const auto rows_at = [&](void* data) {
    return Matrix{data, hidden.dtype, hidden.rows, hidden.cols, hidden.cols};
  };
  MORACLE_CHECK(all.apply(rows_at(s.hidden.data()), {ids}, {s.weights.as<float>()},
                          rows_at(s.sum.data()), {}));
  if (parts.in_slots == 0) return device.enqueue_upload(output.data, s.sum.data(), bytes, stream);
  MORACLE_CHECK(device.enqueue_upload(s.sum_arrived.data(), s.sum.data(), bytes, stream));
  return kernel_device(device).ops().add(output, rows_at(s.sum_arrived.data()), stream);
}

Status PlacedMoe::apply(const ConstMatrix& input, TopkIds topk_ids, TopkWeights topk_weights,
                        const Matrix& output, Stream stream) {
  const Matrix hidden = as_operand(input);
  const Plan& plan = slots_plan();
  MORACLE_CHECK(state_->check(hidden, output));
  if (hidden.rows == 0) return {};
  // The host reads what FusedMoe would check.
  MORACLE_CHECK(check_pointer(topk_ids.data, alignof(int32_t), plan, "topk_ids"));
  MORACLE_CHECK(check_pointer(topk_weights.data, alignof(float), plan, "topk_weights"));
  MORACLE_CHECK(check_pointer(hidden, plan, "hidden"));
  MORACLE_CHECK(check_pointer(output, plan, "output"));
  return state_->apply(hidden, topk_ids, topk_weights, output, stream);
}

PlacementCounts PlacedMoe::counts() const {
  return state_->counts;
}
int64_t PlacedMoe::slot_bytes() const {
  return MoeAccess::slot_bytes(state_->slots);
}
const Plan& PlacedMoe::host_plan() const {
  return state_->all.plan();
}
const Plan& PlacedMoe::slots_plan() const {
  return state_->slots.plan();
}

}  // namespace moracle
