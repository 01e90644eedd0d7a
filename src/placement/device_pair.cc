#include "placement/device_pair.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "placement/placed_moe_state.h"

namespace moracle {
namespace {

// A step of which the device's part is recorded. The host's parts follow each replay.
class PlacedGraph final : public Graph {
 public:
  using Part = std::function<Status(Stream)>;
  PlacedGraph(std::unique_ptr<Graph> graph, Part flush_maps, Part host_parts)
      : graph_(std::move(graph)),
        flush_maps_(std::move(flush_maps)),
        host_parts_(std::move(host_parts)) {}
  Status replay(Stream stream) override {
    MORACLE_CHECK(flush_maps_(stream));
    MORACLE_CHECK(graph_->replay(stream));
    return host_parts_(stream);
  }

 private:
  std::unique_ptr<Graph> graph_;
  Part flush_maps_, host_parts_;
};

}  // namespace

DevicePair::DevicePair(std::shared_ptr<Workspace> host, std::shared_ptr<Workspace> slots,
                       int64_t bytes_in_flight)
    : state_(std::make_unique<State>()) {
  state_->host = std::move(host);
  state_->slot_devices.emplace_back(std::move(slots));
  state_->budget = MoveBudget(bytes_in_flight);
}
DevicePair::~DevicePair() = default;

void DevicePair::add(std::shared_ptr<Workspace> slots) {
  state_->slot_devices.emplace_back(std::move(slots));
}

Status DevicePair::State::reserve(const Plan& plan) {
  const HostLinkSize most{std::max(link_size.num_tokens, plan.max_num_tokens),
                          std::max(link_size.hidden_size, plan.layer.hidden_size),
                          std::max(link_size.top_k, plan.layer.top_k), plan.activation_dtype};
  if (!link || most.bytes() > link_size.bytes() || most.choices() > link_size.choices() ||
      most.num_tokens > link_size.num_tokens) {
    MORACLE_TRY(link, kernel_device(device()).host_link(most));
    link_size = most;
  }
  return {};
}

Status DevicePair::State::reserve_sums(const Plan& plan) {
  const auto bytes =
      static_cast<size_t>(plan.max_num_tokens * plan.layer.hidden_size) * sizeof(float) * 4;
  if (host_sums.bytes() >= bytes) return {};
  MORACLE_TRY(host_sums, host->device().allocate(bytes));
  return {};
}

std::vector<DeviceLock> DevicePair::State::lock_others() const {
  std::vector<DeviceLock> locks;
  for (size_t d = 1; d < slot_devices.size(); ++d) locks.push_back(slot_devices[d].device().lock());
  return locks;
}

Status DevicePair::State::flush_maps(Stream stream) {
  for (SlotDevice& one : slot_devices) MORACLE_CHECK(one.flush_maps(stream_of(one, stream)));
  return {};
}

Status DevicePair::State::finish_transfers() {
  for (SlotDevice& one : slot_devices)
    if (one.transfers) MORACLE_CHECK(one.transfers->finish());
  return {};
}

Status DevicePair::State::SlotDevice::reserve(int64_t host_expert_bytes, int64_t slot_bytes) {
  if (transfers && host_expert_bytes <= from_bytes && slot_bytes <= to_bytes) return {};
  if (transfers) MORACLE_CHECK(transfers->finish());
  from_bytes = std::max(from_bytes, host_expert_bytes);
  to_bytes = std::max(to_bytes, slot_bytes);
  MORACLE_TRY(transfers, kernel_device(device()).transfers(from_bytes, to_bytes));
  return {};
}

Result<MapRange> DevicePair::State::SlotDevice::take_map(int64_t num_experts) {
  constexpr size_t kEntries = 4096;
  const auto count = static_cast<size_t>(num_experts);
  if (maps.empty() || maps.back().used + count > maps.back().on_host.size()) {
    const size_t entries = std::max(kEntries, count);
    MORACLE_TRY(Buffer on_device, device().allocate(entries * sizeof(int32_t)));
    maps.push_back({std::move(on_device), std::vector<int32_t>(entries, -1)});
  }
  MapBlock& block = maps.back();
  MapRange range{&block, std::span(block.on_host).subspan(block.used, count),
                 Buffer(block.on_device.as<int32_t>() + block.used, count * sizeof(int32_t), {})};
  std::fill(range.on_host.begin(), range.on_host.end(), -1);
  block.used += count;
  block.changed = true;
  return range;
}

Status DevicePair::State::SlotDevice::flush_maps(Stream stream) {
  for (MapBlock& block : maps) {
    if (!block.changed) continue;
    MORACLE_CHECK(device().enqueue_upload(block.on_device.data(), block.on_host.data(),
                                          block.used * sizeof(int32_t), stream));
    block.changed = false;
  }
  return {};
}

void DevicePair::State::forget(const Layer* layer) {
  for (StreamBuffers& buffers : streams) {
    for (StreamBuffer& buffer : buffers.two) {
      if (buffer.layer == layer) buffer.layer = nullptr;
    }
  }
}

Status DevicePair::State::begin_next(bool device_waits, Stream stream) {
  const auto next = std::find_if(pending.begin(), pending.end(),
                                 [](const PendingMove& one) { return one.transfer == 0; });
  if (next == pending.end()) return {};
  PlacedMoe::State& layer = *next->layer;
  // Since the decision another one may have taken its place in the host's memory.
  if (layer.pool) MORACLE_CHECK(layer.hold({&next->move.expert, 1}));
  SlotDevice& to = *next->to;
  const auto matrices = layer.matrices_of(next->move.expert, next->move.slot);
  if (device_waits && !to.transfers->in_background(matrices)) return {};
  MORACLE_TRY(next->transfer, to.transfers->begin(matrices, to.evicted, stream_of(to, stream)));
  return {};
}

Status DevicePair::State::use_wait(Stream stream) {
  if (moves && undecided != nullptr) {
    undecided->decide();
    undecided = nullptr;
  }
  return begin_next(true, stream);
}

Status DevicePair::State::arrive(Stream stream) {
  while (!pending.empty()) {
    // Steps without a wait, and devices whose transfers run in stream order, begin them here.
    if (pending.front().transfer == 0) MORACLE_CHECK(begin_next(false, stream));
    const PendingMove first = pending.front();
    ExpertTransfers& transfers = *first.to->transfers;
    MORACLE_TRY(const bool there, transfers.arrived(first.transfer));
    if (!there) return {};
    pending.pop_front();
    PlacedMoe::State& layer = *first.layer;
    budget.end(layer.slot_bytes());
    MORACLE_CHECK(transfers.wait(first.transfer, stream_of(*first.to, stream)));
    if (Status arrived = layer.arrive(first.move.expert, first.move.slot, stream); !arrived) {
      layer.table.clear(first.move.slot);
      return arrived;
    }
  }
  return {};
}

Status DevicePair::State::wait_for_call(Stream stream) {
  const auto start = Clock::now();
  Status arrived = link->arrived(stream);
  host_waits_us += us_since(start);
  return arrived;
}

void DevicePair::add_waits(PlacementCounts& to) const {
  const State& s = *state_;
  if (!s.link) return;
  to.host_waits_us += s.host_waits_us;
  if (s.link->device_waits())
    to.slots_wait_us += s.link->waited_us();
  else if (s.device().host_visible())
    to.slots_wait_us += s.slots_wait_us;
  else
    to.slots_wait_us = -1;  // a device that only enqueues does not tell when its part is complete
}

// The device waits for every answer, so an error does not end the loop.
Status DevicePair::State::run(std::span<const HostPart> parts, Stream stream) {
  Status first;
  for (const HostPart& part : parts) {
    if (first.ok()) first = use_wait(stream);
    Status done = wait_for_call(stream);
    if (done) done = static_cast<PlacedMoe::State*>(part.layer)->run_host_part(part, first.ok());
    if (first.ok()) first = std::move(done);
  }
  return first;
}

Result<int64_t> DevicePair::move(int64_t most, Stream stream) {
  State& s = *state_;
  const DeviceLock lock = s.device().lock();
  const std::vector<DeviceLock> others = s.lock_others();
  MORACLE_CHECK(s.arrive(stream));
  s.budget.end_step();
  s.moves = most > 0;
  int64_t count = 0;
  // Another layer is first after each step: the last ones may find the bus taken.
  const auto num_layers = static_cast<int64_t>(s.layers.size());
  for (int64_t i = 0; i < num_layers; ++i)
    count += s.layers[static_cast<size_t>((s.step + i) % num_layers)]->begin_moves(most);
  ++s.step;
  MORACLE_CHECK(s.flush_maps(stream));
  for (State::SlotDevice& one : s.slot_devices) {
    if (count == 0 || !one.transfers) continue;
    MORACLE_TRY(one.evicted, one.transfers->mark(s.stream_of(one, stream)));
  }
  return count;
}

Result<std::unique_ptr<Graph>> DevicePair::record(const std::function<Status()>& enqueue,
                                                  Stream stream) {
  State& s = *state_;
  const DeviceLock lock = s.device().lock();
  if (!s.link || !s.link->device_waits()) return std::unique_ptr<Graph>();
  std::vector<State::HostPart> parts;
  s.recording = &parts;
  Result<std::unique_ptr<Graph>> graph = s.device().record(enqueue, stream);
  s.recording = nullptr;
  if (!graph || !*graph) return graph;
  const auto run = [&s, parts](Stream on) {
    const DeviceLock held = s.device().lock();
    const std::vector<DeviceLock> others = s.lock_others();
    return s.run(parts, on);
  };
  const auto flush = [&s](Stream on) {
    const DeviceLock held = s.device().lock();
    const std::vector<DeviceLock> others = s.lock_others();
    return s.flush_maps(on);
  };
  return std::unique_ptr<Graph>(std::make_unique<PlacedGraph>(*std::move(graph), flush, run));
}

Result<Parallelism> slots_of(int64_t num_experts, int64_t num_slots) {
  if (num_experts < 0 || num_experts > kMaxLayerSize || num_slots < 0 || num_slots > num_experts) {
    return Error{ErrorKind::kInvalidArgument, "", "slots",
                 str("0 to ", num_experts, ", the number of experts"), str("it is ", num_slots)};
  }
  std::vector<int32_t> local(num_experts, -1);
  for (int64_t slot = 0; slot < num_slots; ++slot) local[slot] = static_cast<int32_t>(slot);
  Parallelism parallel;
  MORACLE_TRY(parallel.expert_map, ExpertMap::from(std::move(local)));
  return parallel;
}

}  // namespace moracle
