// One layer's experts on two devices. A call goes this way:
//
//   ids, weights, activations    to the host
//   choices of experts in slots  one apply of the device with the slots, enqueued
//   all others                   one apply of the host, meanwhile
//   the host's part              to the device with the slots, and added there
//
// A slot's bytes change only while no map lists the slot, so that no call reads them.
#include <algorithm>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "moe/checks.h"
#include "placement/placed_moe_state.h"

namespace moracle {

PlacedMoe::PlacedMoe(std::unique_ptr<State> state) : state_(std::move(state)) {}
PlacedMoe::PlacedMoe(PlacedMoe&&) noexcept = default;
PlacedMoe& PlacedMoe::operator=(PlacedMoe&&) noexcept = default;
PlacedMoe::~PlacedMoe() = default;

PlacedMoe::State::State(FusedMoe on_host, std::vector<Slots> in_slots,
                        std::shared_ptr<DevicePair> pair)
    : all(std::move(on_host)),
      slots(std::move(in_slots)),
      devices(std::move(pair)),
      table(all.plan().layer.num_experts, slots.back().first + slots.back().num_slots()),
      policy(table.num_experts(), table.num_slots(), {}) {
  for (const Slots& one : slots) first_slots.push_back(one.first);
  shared().layers.push_back(this);
}

PlacedMoe::State::~State() {
  DevicePair::State& s = shared();
  const DeviceLock lock = s.device().lock();
  const std::vector<DeviceLock> others = s.lock_others();
  // Transfers write to this layer's slots. Destructor: an error is that of the device's next call.
  static_cast<void>(s.finish_transfers());
  for (int64_t slot = 0; slot < table.num_slots(); ++slot) cancel(slot);
  std::erase(s.layers, this);
  if (s.undecided == this) s.undecided = nullptr;
  s.forget(this);
}

Result<std::unique_ptr<PlacedMoe::State>> PlacedMoe::State::make(
    FusedMoe on_host, std::span<const Selection> selections, std::shared_ptr<DevicePair> devices) {
  DevicePair::State& shared = *devices->state_;
  if (selections.size() != shared.slot_devices.size()) {
    return Error{ErrorKind::kInvalidArgument, "", on_host.plan().layer.name,
                 str("a selection for each of ", shared.slot_devices.size(), " devices with slots"),
                 str("there are ", selections.size())};
  }
  std::vector<Slots> slots;
  int64_t first = 0;
  for (size_t d = 0; d < selections.size(); ++d) {
    SlotDevice& on = shared.slot_devices[d];
    MORACLE_TRY(FusedMoe moe, MoeAccess::make_slots(on_host, selections[d], on.workspace));
    if (d == 0) MORACLE_CHECK(shared.reserve(moe.plan()));
    MORACLE_CHECK(on.reserve(MoeAccess::expert_bytes(on_host), MoeAccess::expert_bytes(moe)));
    if (d > 0) MORACLE_CHECK(on.reserve_calls(shared.link_size));
    MORACLE_TRY(MapRange map, on.take_map(on_host.plan().layer.num_experts));
    MoeAccess::share_map(moe, map.on_device);
    slots.push_back({std::move(moe), std::move(map), &on, first});
    first += slots.back().num_slots();
  }
  if (selections.size() > 1) MORACLE_CHECK(shared.reserve_sums(on_host.plan()));
  MORACLE_CHECK(check_slots(slots));
  MORACLE_CHECK(shared.flush_maps({}));
  auto state = std::make_unique<State>(std::move(on_host), std::move(slots), std::move(devices));
  state->pinned = MoeAccess::pin(state->all, shared.device());
  return state;
}

// Calls hand the same rows to all devices, and a move takes the same bytes.
Status PlacedMoe::State::check_slots(std::span<const Slots> slots) {
  const Plan& want = slots.front().moe.plan();
  for (const Slots& other : slots) {
    const Plan& plan = other.moe.plan();
    if (plan.activation_dtype == want.activation_dtype &&
        plan.max_num_tokens >= want.max_num_tokens && plan.backend->layout == want.backend->layout)
      continue;
    return Error{ErrorKind::kUnsupported, "", want.layer.name,
                 str("devices with slots that pack experts alike and take ", want.max_num_tokens,
                     " tokens in ", name(want.activation_dtype)),
                 str("one takes ", plan.max_num_tokens, " in ", name(plan.activation_dtype),
                     " with backend ", plan.backend->name, " beside ", want.backend->name)};
  }
  return {};
}

Result<PlacedMoe> PlacedMoe::make(DescribedWeights&& weights, const Selection& all,
                                  std::span<const Selection> slots,
                                  std::shared_ptr<DevicePair> devices, const Progress& progress) {
  const std::string layer = weights.spec.name;
  return or_out_of_memory(layer, [&]() -> Result<PlacedMoe> {
    const std::shared_ptr<Workspace>& host = devices->state_->host;
    MORACLE_TRY(FusedMoe on_host, FusedMoe::make(std::move(weights), all, host, progress));
    MORACLE_TRY(auto state, State::make(std::move(on_host), slots, std::move(devices)));
    return PlacedMoe(std::move(state));
  });
}

Result<PlacedMoe> PlacedMoe::make_from_files(DescribedWeights&& weights, const Selection& some,
                                             std::span<const Selection> slots,
                                             std::shared_ptr<DevicePair> devices,
                                             bool deterministic, const Progress& progress) {
  const std::string layer = weights.spec.name;
  return or_out_of_memory(layer, [&]() -> Result<PlacedMoe> {
    DevicePair::State& shared = *devices->state_;
    MORACLE_TRY(FusedMoe on_host, MoeAccess::make_pool(weights, some, shared.host));
    MORACLE_TRY(auto state, State::make(std::move(on_host), slots, std::move(devices)));
    const Plan& plan = state->all.plan();
    MORACLE_CHECK(shared.reserve_sums(plan));
    state->pool.emplace(std::move(weights), plan.experts.num_local(), deterministic);
    MORACLE_CHECK(state->pool->fill(state->all, progress));
    return PlacedMoe(std::move(state));
  });
}

// The host's part crosses as whole rows. FusedMoe checks the rest.
Status PlacedMoe::State::check(const Matrix& hidden, const Matrix& output) const {
  const Plan& plan = first().plan();
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

int64_t PlacedMoe::State::split(std::span<int32_t> ids) {
  int64_t in_slots = 0, others = 0;
  last.assign(ids.begin(), ids.end());
  for (size_t d = 1; d < slots.size(); ++d) {
    slots[d].chosen = 0;
    std::fill_n(slots[d].on->host_ids.as<int32_t>(), ids.size(), -1);
  }
  for (int32_t& id : ids) {
    if (id < 0 || id >= table.num_experts()) {
      id = -1;  // the device with the slots reports those that are not -1
    } else if (!is_here(id)) {
      last[&id - ids.data()] = id = -1;  // another rank's
    } else if (const int32_t slot = table.ready_slot(id); slot >= 0) {
      Slots& there = slots_with(slot);
      if (&there != slots.data()) there.on->host_ids.as<int32_t>()[&id - ids.data()] = id;
      ++there.chosen, ++there.hits;
      id = -1;
      ++in_slots;
    } else {
      ++others;
    }
  }
  counts.hits += in_slots;
  counts.misses += others;
  policy.observe(last);
  decided.reset();
  shared().undecided = this;
  return others;
}

Status PlacedMoe::State::run_host_part(const DevicePair::State::HostPart& part, bool computes) {
  HostLink& link = *shared().link;
  const Plan& plan = first().plan();
  const int64_t choices = part.num_tokens * plan.layer.top_k;
  const int64_t own = computes ? split({link.ids(), static_cast<size_t>(choices)}) : 0;
  const bool others = computes && std::any_of(slots.begin() + 1, slots.end(),
                                              [](const Slots& other) { return other.chosen > 0; });
  if (own == 0 && !others) {
    link.answer(HostLink::Part::kNone);
    return {};
  }
  const auto rows_at = [&](void* data) {
    const int64_t cols = plan.layer.hidden_size;
    return Matrix{data, plan.activation_dtype, part.num_tokens, cols, cols};
  };
  const LoraIds lora_ids{part.adapts ? link.lora_ids() : nullptr};
  const Matrix hidden = rows_at(link.hidden()), sum = rows_at(link.sum());
  Status computed = others ? compute_with_others(hidden, sum, choices, own > 0, lora_ids)
                           : compute_on_host(hidden, sum, choices, lora_ids);
  link.answer(computed ? HostLink::Part::kSum : HostLink::Part::kNone);
  return computed;
}

Status PlacedMoe::State::apply(const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                               const Matrix& output, Stream on, LoraIds lora_ids) {
  DevicePair::State& s = shared();
  // The memory between the devices serves one layer at a time.
  const DeviceLock lock = s.device().lock();
  const std::vector<DeviceLock> others = s.lock_others();
  // Both devices follow one map, also after a call that failed.
  if (s.recording == nullptr) MORACLE_CHECK(s.flush_maps(on));
  const CallWay way = s.recording == nullptr ? way_of(ways, hidden.rows) : CallWay::kDivided;
  if (way == CallWay::kStreamed && buffers != nullptr)
    return apply_streamed(hidden, topk_ids, topk_weights, output, on, lora_ids);
  if (way == CallWay::kFetched)
    MORACLE_CHECK(fetch(topk_ids.data, hidden.rows * first().plan().layer.top_k, on));
  HostLink& link = *s.link;
  MORACLE_CHECK(link.send({hidden, topk_ids.data, topk_weights.data,
                           hidden.rows * first().plan().layer.top_k, lora_ids.data},
                          on));
  const bool waits = link.device_waits();
  // Before more work is enqueued that synchronizing would wait for.
  if (!waits) MORACLE_CHECK(s.wait_for_call(on));
  // The device works while the host computes. Without its part, it still reports wrong ids and
  // writes zeros.
  Status enqueued = first().apply(hidden, topk_ids, topk_weights, output, on, lora_ids);
  if (enqueued && waits) enqueued = link.add(output, on);
  const DevicePair::State::HostPart part{this, hidden.rows, lora_ids.data != nullptr};
  if (s.recording != nullptr) {
    s.recording->push_back(part);
    return enqueued;
  }
  // After an error, too: the device waits for an answer to what was sent.
  if (waits && enqueued) enqueued = s.use_wait(on);
  Status computed = waits ? s.wait_for_call(on) : Status();
  // A device whose work is complete after each call has none until the host's part arrives.
  const auto start = Clock::now();
  if (computed) computed = run_host_part(part, enqueued.ok());
  s.slots_wait_us += us_since(start);
  if (!enqueued) return enqueued;
  if (!computed || waits) return computed;
  return link.add(output, on);
}

Status PlacedMoe::apply(const ConstMatrix& input, TopkIds topk_ids, TopkWeights topk_weights,
                        const Matrix& output, Stream stream, LoraIds lora_ids) {
  const Matrix hidden = as_operand(input);
  const Plan& plan = slots_plan();
  MORACLE_CHECK(state_->check(hidden, output));
  if (hidden.rows == 0) return {};
  // The host reads what FusedMoe would check.
  MORACLE_CHECK(check_pointer(topk_ids.data, alignof(int32_t), plan, "topk_ids"));
  MORACLE_CHECK(check_pointer(topk_weights.data, alignof(float), plan, "topk_weights"));
  MORACLE_CHECK(check_pointer(hidden, plan, "hidden"));
  MORACLE_CHECK(check_pointer(output, plan, "output"));
  if (lora_ids.data != nullptr) {
    MORACLE_CHECK(check_pointer(lora_ids.data, alignof(int32_t), plan, "lora_ids"));
    if (plan.lora_rank == 0) {
      return Error{ErrorKind::kInvalidArgument, "", plan.layer.name, "a plan with adapters",
                   "the plan has none"};
    }
  }
  return state_->apply(hidden, topk_ids, topk_weights, output, stream, lora_ids);
}

PlacementCounts PlacedMoe::counts() const {
  PlacementCounts counts = state_->counts;
  for (const State::Slots& one : state_->slots) counts.hits_of_devices.push_back(one.hits);
  return counts;
}
std::vector<int64_t> PlacedMoe::slots_of_devices() const {
  std::vector<int64_t> counts;
  for (const State::Slots& one : state_->slots) counts.push_back(one.num_slots());
  return counts;
}
int64_t PlacedMoe::slot_bytes() const {
  return state_->slot_bytes();
}
const Plan& PlacedMoe::host_plan() const {
  return state_->all.plan();
}
const Plan& PlacedMoe::slots_plan() const {
  return state_->first().plan();
}

}  // namespace moracle
