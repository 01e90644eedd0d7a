// The parts of a layer's sum that devices after the first compute: the host hands them the rows
// that the first one sent, and adds their results to its own part.
#include <algorithm>

#include "base/try.h"
#include "kernels/ops.h"
#include "placement/placed_moe_state.h"

namespace moracle {

Status DevicePair::State::SlotDevice::reserve_calls(const HostLinkSize& size) {
  const auto bytes = static_cast<size_t>(size.bytes());
  const size_t choices = static_cast<size_t>(size.choices()) * sizeof(int32_t);
  const size_t tokens = static_cast<size_t>(size.num_tokens) * sizeof(int32_t);
  if (hidden.bytes() < bytes) {
    MORACLE_TRY(hidden, device().allocate(bytes));
    MORACLE_TRY(output, device().allocate(bytes));
    MORACLE_TRY(host_output, device().allocate_host(bytes));
  }
  if (ids.bytes() < choices) {
    MORACLE_TRY(ids, device().allocate(choices));
    MORACLE_TRY(weights, device().allocate(choices));
    MORACLE_TRY(host_ids, device().allocate_host(choices));
  }
  if (lora_ids.bytes() < tokens) {
    MORACLE_TRY(lora_ids, device().allocate(tokens));
  }
  return {};
}

// The host's memory of the call stays as it is until the device's part has arrived.
Status PlacedMoe::State::begin_on(Slots& other, const Matrix& hidden, int64_t choices,
                                  LoraIds lora_ids) {
  const HostLink& link = *shared().link;
  SlotDevice& on = *other.on;
  Device& device = on.device();
  const auto bytes = static_cast<size_t>(hidden.rows * hidden.cols * bits(hidden.dtype) / 8);
  const size_t id_bytes = static_cast<size_t>(choices) * sizeof(int32_t);
  MORACLE_CHECK(device.upload(on.hidden.data(), hidden.data, bytes));
  MORACLE_CHECK(device.upload(on.ids.data(), on.host_ids.data(), id_bytes));
  MORACLE_CHECK(device.upload(on.weights.data(), link.weights(), id_bytes));
  if (lora_ids.data != nullptr) {
    MORACLE_CHECK(device.upload(on.lora_ids.data(), lora_ids.data,
                                static_cast<size_t>(hidden.rows) * sizeof(int32_t)));
    lora_ids.data = on.lora_ids.as<int32_t>();
  }
  Matrix input = hidden, output = hidden;
  input.data = on.hidden.data();
  output.data = on.output.data();
  MORACLE_CHECK(other.moe.apply(input, {on.ids.as<int32_t>()}, {on.weights.as<float>()}, output, {},
                                lora_ids));
  return device.download(on.host_output.data(), on.output.data(), bytes);
}

Status PlacedMoe::State::compute_on_host(const Matrix& hidden, const Matrix& sum, int64_t choices,
                                         LoraIds lora_ids) {
  const HostLink& link = *shared().link;
  if (pool) return compute_from_pool(hidden, sum, choices);
  return all.apply(hidden, {link.ids()}, {link.weights()}, sum, {}, lora_ids);
}

Status PlacedMoe::State::compute_with_others(const Matrix& hidden, const Matrix& sum,
                                             int64_t choices, bool own, LoraIds lora_ids) {
  auto* const sums = shared().host_sums.as<float>() + 2 * hidden.rows * hidden.cols;
  const Matrix whole = Matrix::f32(sums, sum.rows, sum.cols),
               part = Matrix::f32(sums + sum.rows * sum.cols, sum.rows, sum.cols);
  Ops& ops = kernel_device(shared().host->device()).ops();
  Status first;
  size_t begun = 1;
  for (; begun < slots.size() && first; ++begun)
    if (slots[begun].chosen > 0) first = begin_on(slots[begun], hidden, choices, lora_ids);
  bool any = own && first;
  if (any) first = compute_on_host(hidden, whole, choices, lora_ids);
  // After an error, too: devices read memory that the next call writes.
  for (size_t d = 1; d < begun; ++d) {
    if (slots[d].chosen == 0) continue;
    const auto start = Clock::now();
    Status done = slots[d].on->device().synchronize();
    shared().host_waits_us += us_since(start);
    Matrix arrived = sum;
    arrived.data = slots[d].on->host_output.data();
    if (done && first) done = ops.convert(arrived, any ? part : whole, {});
    if (done && first && any) done = ops.add(whole, part, {});
    if (first) first = std::move(done);
    any = true;
  }
  return first ? ops.convert(whole, sum, {}) : first;
}

}  // namespace moracle
