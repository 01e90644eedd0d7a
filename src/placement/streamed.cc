// Calls with many tokens: all experts run on the device with the slots. They come there share after
// share, as much as a buffer holds, while the device computes with the share before.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "kernels/ops.h"
#include "placement/placed_moe_state.h"

namespace moracle {
int64_t PlacedMoe::State::num_passes() const {
  const int64_t capacity = buffers->capacity();
  return (all.plan().experts.num_local() + capacity - 1) / capacity;
}

Result<PlacedMoe::State::StreamBuffer*> PlacedMoe::State::stage(int64_t pass, Stream on) {
  for (StreamBuffer& buffer : buffers->two) {
    if (buffer.layer == this && buffer.pass == pass) return &buffer;
  }
  StreamBuffer& buffer = buffers->two[buffers->next];
  buffers->next = 1 - buffers->next;
  buffer.layer = nullptr;  // until all of it is enqueued
  ExpertTransfers& transfers = *shared().first().transfers;
  const int64_t capacity = buffers->capacity(), first = pass * capacity;
  const std::vector<int32_t>& experts = all.plan().experts.global();
  const int64_t end = std::min(first + capacity, all.plan().experts.num_local());
  std::vector<MoeAccess::ExpertInSlot> together;
  const auto send = [&]() -> Status {
    if (together.empty()) return {};
    const auto matrices = MoeAccess::matrices_of(all, buffer.experts, together);
    MORACLE_TRY(buffer.transfer, transfers.begin(matrices, buffer.used, on));
    counts.bytes_streamed += static_cast<int64_t>(together.size()) * slot_bytes();
    together.clear();
    return {};
  };
  for (int64_t i = first; i < end; ++i) {
    if (const int32_t slot = slot_on_first(experts[i]); slot >= 0) {
      MORACLE_CHECK(MoeAccess::copy_slot(this->first(), slot, buffer.experts, i - first, on));
      continue;
    }
    together.push_back({i, i - first});
    if (together.size() == kTransferExperts) MORACLE_CHECK(send());
  }
  MORACLE_CHECK(send());
  buffer.layer = this;
  buffer.pass = pass;
  return &buffer;
}

Status PlacedMoe::State::stage_next(int64_t pass, Stream on) {
  State* layer = this;
  if (++pass == num_passes()) {
    const std::vector<State*>& layers = shared().layers;
    const auto own = std::find(layers.begin(), layers.end(), this);
    if (own + 1 == layers.end()) return {};  // the step's last layer
    layer = own[1];
    pass = 0;
    if (layer->buffers == nullptr) return {};
  }
  MORACLE_TRY(StreamBuffer* const staged, layer->stage(pass, on));
  static_cast<void>(staged);
  return {};
}

Status PlacedMoe::State::apply_streamed(const Matrix& hidden, TopkIds topk_ids,
                                        TopkWeights topk_weights, const Matrix& output, Stream on,
                                        LoraIds lora_ids) {
  DevicePair::State& s = shared();
  const int64_t capacity = buffers->capacity(), passes = num_passes();
  const Matrix partial{s.partial.data(), output.dtype, output.rows, output.cols, output.cols};
  for (int64_t pass = 0; pass < passes; ++pass) {
    MORACLE_TRY(StreamBuffer* const buffer, stage(pass, on));
    MORACLE_CHECK(s.first().transfers->wait(buffer->transfer, on));
    const int64_t first = pass * capacity;
    const std::vector<int32_t>& experts = all.plan().experts.global();
    const int64_t count = std::min(capacity, all.plan().experts.num_local() - first);
    for (int64_t i = 0; i < count; ++i)
      MORACLE_CHECK(MoeAccess::slot_filled(buffer->experts, i, all, first + i, on));
    if (buffer->mapped != pass) {
      std::vector<int32_t> share(table.num_experts(), -1);
      for (int64_t i = 0; i < count; ++i) share[experts[first + i]] = static_cast<int32_t>(i);
      MORACLE_CHECK(MoeAccess::map_slots(buffer->experts, share, on));
      buffer->mapped = pass;
    }
    MORACLE_CHECK(buffer->experts.apply(hidden, topk_ids, topk_weights,
                                        pass == 0 ? output : partial, on, lora_ids));
    if (pass > 0) MORACLE_CHECK(kernel_device(s.device()).ops().add(output, partial, on));
    MORACLE_TRY(buffer->used, s.first().transfers->mark(on));
    MORACLE_CHECK(stage_next(pass, on));
  }
  ++counts.streamed_calls;
  return {};
}

Status PlacedMoe::stream(const Selection& selection) {
  State& state = *state_;
  DevicePair::State& s = state.shared();
  const DeviceLock lock = s.device().lock();
  const LayerSpec& layer = slots_plan().layer;
  MORACLE_TRY(const Plan plan, selection.chosen());
  if (state.pool) {
    return Error{ErrorKind::kUnsupported, "", layer.name, "all experts in host memory",
                 "files have some"};
  }
  if (plan.experts.num_local() == 0) {
    return Error{ErrorKind::kInvalidArgument, "", layer.name, "memory for at least one expert",
                 "it is for none"};
  }
  const auto same = [&](const DevicePair::State::StreamBuffers& buffers) {
    const Plan& has = buffers.two[0].experts.plan();
    return has.layer.same_but_name(layer) && has.backend == plan.backend &&
           has.experts == plan.experts && has.max_num_tokens == plan.max_num_tokens;
  };
  const auto found = std::find_if(s.streams.begin(), s.streams.end(), same);
  if (found != s.streams.end()) {
    state.buffers = &*found;
    return {};
  }
  MORACLE_TRY(FusedMoe one, MoeAccess::make_slots(state.all, selection, s.first().workspace));
  MORACLE_TRY(FusedMoe other, MoeAccess::make_slots(state.all, selection, s.first().workspace));
  const auto bytes = static_cast<size_t>(plan.max_num_tokens * layer.hidden_size *
                                         bits(plan.activation_dtype) / 8);
  if (plan.experts.num_local() < layer.num_experts && s.partial.bytes() < bytes) {
    MORACLE_TRY(s.partial, s.device().allocate(bytes));
  }
  s.streams.push_back({.two = {{.experts = std::move(one)}, {.experts = std::move(other)}}});
  state.buffers = &s.streams.back();
  return {};
}

void PlacedMoe::set_ways(std::vector<CallWay> ways) {
  state_->ways = std::move(ways);
}

void PlacedMoe::set_stream_from(int64_t num_tokens) {
  const int64_t most = slots_plan().max_num_tokens;
  state_->ways.assign(static_cast<size_t>(std::clamp<int64_t>(num_tokens - 1, 0, most)),
                      CallWay::kDivided);
  if (num_tokens <= most) state_->ways.push_back(CallWay::kStreamed);
}

}  // namespace moracle
