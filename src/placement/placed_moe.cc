// One layer's experts on two devices. A call goes this way:
//
//   ids, weights, activations    to the host, which waits for them
//   choices of experts in slots  one apply of the device with the slots, enqueued
//   all others                   one apply of the host, meanwhile
//   the host's part              to the device with the slots, and added there
//
// While the host waits for the ids, it packs a piece of an expert that is on its way into a slot. A
// slot's bytes change only while no map lists the slot, so that no call reads them.
#include <algorithm>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "kernels/ops.h"
#include "moe/checks.h"
#include "moe/moe_access.h"
#include "placement/device_pair.h"
#include "placement/policy.h"
#include "placement/slots.h"

namespace moracle {

struct PlacedMoe::State {
  State(FusedMoe on_host, FusedMoe in_slots, std::shared_ptr<DevicePair> pair)
      : all(std::move(on_host)),
        slots(std::move(in_slots)),
        devices(std::move(pair)),
        table(all.plan().layer.num_experts, slots.plan().experts.num_local()),
        policy(table.num_experts(), {}),
        local(table.num_experts(), -1) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    const Turn turn = shared().device().turn();
    for (int64_t slot = 0; slot < table.num_slots(); ++slot) cancel(slot);
  }

  FusedMoe all, slots;
  std::shared_ptr<DevicePair> devices;
  ExpertSlots table;
  SlotPolicy policy;
  std::vector<int32_t> local;  // [num_experts]: the slot of each expert that calls find there
  std::vector<int32_t> last;   // ids of the last call
  PlacementCounts counts;

  DevicePair::State& shared() const { return *devices->state_; }
  Status check(const Matrix& hidden, const Matrix& output) const;
  Status apply(const Matrix& hidden, TopkIds ids, TopkWeights weights, const Matrix& output,
               Stream stream);
  // Takes the choices of experts in slots out of the host's ids. Returns the numbers of both.
  struct Split {
    int64_t in_slots = 0, on_host = 0;
  };
  Split split(std::span<int32_t> ids);
  Status place(int64_t expert, int64_t slot, Stream stream);
  Status fill(int64_t expert, int64_t slot, Stream stream);
  // Makes the packed bytes of an arriving expert those of its slot.
  Status arrive(int64_t expert, int64_t slot, Stream stream);
  Result<int64_t> move(int64_t most, Stream stream);
  // Packs the next piece of the first pending move.
  static Status pack_pending(DevicePair::State& shared);
  // Lets the first pending move arrive if it is packed.
  static Status arrive_pending(DevicePair::State& shared, Stream stream);
  // Drops a pending move into the slot, if any.
  void cancel(int64_t slot);
  Status evict(int64_t slot, Stream stream);
  Status set_local(int64_t expert, int32_t slot, Stream stream);
  Status swap(PackedWeights&& weights, Stream stream);
};

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
  const Turn turn = device.turn();
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

// ---- moves

Status PlacedMoe::State::set_local(int64_t expert, int32_t slot, Stream stream) {
  local[expert] = slot;
  return MoeAccess::map_slots(slots, local, stream);
}

void PlacedMoe::State::cancel(int64_t slot) {
  DevicePair::State& s = shared();
  const auto found = std::find_if(s.pending.begin(), s.pending.end(), [&](const PendingMove& one) {
    return one.layer == this && one.move.slot == slot;
  });
  if (found == s.pending.end()) return;
  s.pending.erase(found);
  s.budget.end(MoeAccess::slot_bytes(slots));
}

Status PlacedMoe::State::evict(int64_t slot, Stream stream) {
  const int32_t expert = table.expert_in(slot);
  const bool is_ready = table.state(slot) == ExpertSlots::State::kReady;
  cancel(slot);
  table.clear(slot);
  return is_ready ? set_local(expert, -1, stream) : Status();
}

Status PlacedMoe::State::fill(int64_t expert, int64_t slot, Stream stream) {
  DevicePair::State& s = shared();
  if (!s.pending.empty()) s.pending.front().next_piece = 0;  // its bytes are overwritten
  for (int64_t piece = 0; piece < MoeAccess::num_slot_pieces(all); ++piece) {
    MORACLE_CHECK(MoeAccess::pack_for_slot(all, expert, piece, slots, s.packed.as<std::byte>()));
  }
  return arrive(expert, slot, stream);
}

Status PlacedMoe::State::arrive(int64_t expert, int64_t slot, Stream stream) {
  MORACLE_CHECK(
      MoeAccess::fill_slot(slots, slot, all, expert, shared().packed.as<std::byte>(), stream));
  MORACLE_CHECK(set_local(expert, static_cast<int32_t>(slot), stream));
  table.finish(slot);
  ++counts.moves;
  counts.bytes_moved += MoeAccess::slot_bytes(slots);
  return {};
}

Status PlacedMoe::State::place(int64_t expert, int64_t slot, Stream stream) {
  const Turn turn = shared().device().turn();
  if (table.ready_slot(expert) == slot) return {};
  if (table.slot_of(expert) >= 0) MORACLE_CHECK(evict(table.slot_of(expert), stream));
  MORACLE_CHECK(evict(slot, stream));
  table.begin(expert, slot);
  Status filled = fill(expert, slot, stream);
  if (!filled) {
    table.clear(slot);
    local[expert] = -1;
  }
  return filled;
}

Result<int64_t> PlacedMoe::State::move(int64_t most, Stream stream) {
  DevicePair::State& s = shared();
  const Turn turn = s.device().turn();
  const int64_t bytes = MoeAccess::slot_bytes(slots);
  const int64_t fits =
      s.pending.empty() ? std::max<int64_t>(s.budget.moves_of(bytes), 1) : s.budget.moves_of(bytes);
  const std::vector<ExpertMove> moves = policy.decide(table, std::min(most, fits));
  for (const ExpertMove& move : moves) {
    MORACLE_CHECK(evict(move.slot, stream));
    table.begin(move.expert, move.slot);
    s.budget.begin(bytes);
    s.pending.push_back({this, move});
  }
  return static_cast<int64_t>(moves.size());
}

Status PlacedMoe::State::pack_pending(DevicePair::State& shared) {
  if (shared.pending.empty()) return {};
  PendingMove& first = shared.pending.front();
  const State& layer = *static_cast<const State*>(first.layer);
  return MoeAccess::pack_for_slot(layer.all, first.move.expert, first.next_piece++, layer.slots,
                                  shared.packed.as<std::byte>());
}

Status PlacedMoe::State::arrive_pending(DevicePair::State& shared, Stream stream) {
  if (shared.pending.empty()) return {};
  const PendingMove first = shared.pending.front();
  State& layer = *static_cast<State*>(first.layer);
  if (first.next_piece < MoeAccess::num_slot_pieces(layer.all)) return {};
  shared.pending.pop_front();
  shared.budget.end(MoeAccess::slot_bytes(layer.slots));
  Status arrived = layer.arrive(first.move.expert, first.move.slot, stream);
  if (!arrived) layer.table.clear(first.move.slot);
  return arrived;
}

Status PlacedMoe::place(int64_t expert, int64_t slot, Stream stream) {
  const ExpertSlots& table = state_->table;
  if (expert < 0 || expert >= table.num_experts() || slot < 0 || slot >= table.num_slots()) {
    return Error{
        ErrorKind::kInvalidArgument, "", slots_plan().layer.name,
        str("an expert below ", table.num_experts(), " and a slot below ", table.num_slots()),
        str("it is expert ", expert, " in slot ", slot)};
  }
  return state_->place(expert, slot, stream);
}

Status PlacedMoe::evict(int64_t slot, Stream stream) {
  const ExpertSlots& table = state_->table;
  if (slot < 0 || slot >= table.num_slots()) {
    return Error{ErrorKind::kInvalidArgument, "", slots_plan().layer.name,
                 str("a slot below ", table.num_slots()), str("it is slot ", slot)};
  }
  const Turn turn = state_->shared().device().turn();
  return state_->evict(slot, stream);
}

std::vector<int32_t> PlacedMoe::placed() const {
  std::vector<int32_t> experts;
  for (int64_t slot = 0; slot < state_->table.num_slots(); ++slot)
    experts.push_back(state_->table.expert_in(slot));
  return experts;
}

void PlacedMoe::set_policy(const PolicyOptions& options) {
  state_->policy = SlotPolicy(state_->table.num_experts(), options);
}

Result<int64_t> PlacedMoe::move(int64_t most, Stream stream) {
  return state_->move(most, stream);
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

// ---- other weights

Result<PackedWeights> PlacedMoe::pack(DescribedWeights&& weights, const Progress& progress) const {
  return state_->all.pack(std::move(weights), progress);
}

Status PlacedMoe::swap(PackedWeights&& weights, Stream stream) {
  return state_->swap(std::move(weights), stream);
}

Status PlacedMoe::State::swap(PackedWeights&& weights, Stream stream) {
  const Turn turn = shared().device().turn();
  MORACLE_CHECK(all.swap(std::move(weights)));
  // Slots hold the old weights until each is filled: calls must not find them.
  std::vector<std::pair<int32_t, int64_t>> experts;
  for (int64_t slot = 0; slot < table.num_slots(); ++slot) {
    if (table.expert_in(slot) >= 0) experts.emplace_back(table.expert_in(slot), slot);
    cancel(slot);
    table.clear(slot);
  }
  std::fill(local.begin(), local.end(), -1);
  MORACLE_CHECK(MoeAccess::map_slots(slots, local, stream));
  for (const auto& [expert, slot] : experts) MORACLE_CHECK(place(expert, slot, stream));
  return shared().device().synchronize(stream);
}

}  // namespace moracle
