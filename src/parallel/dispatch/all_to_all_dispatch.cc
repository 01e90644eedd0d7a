// Dispatch: one message from rank to rank carries ids, weights and, through the host, the rows,
// because each further exchange costs the network's latency.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/try.h"
#include "kernels/kernel_device.h"
#include "kernels/ops.h"
#include "moe/moe_access.h"
#include "parallel/dispatch/all_to_all_experts.h"
#include "parallel/dispatch/dispatch_message.h"

namespace moracle {

Result<Rows> AllToAllExperts::quantize(FusedMoe& moe, const Matrix& hidden, Stream stream) {
  const Rows form = ready_form(moe.plan());
  if (form.values.cols == 0) return Rows{hidden, nullptr, 0};
  const DType dtype = form.values.dtype;
  const int64_t cols = form.values.cols;
  MORACLE_TRY(std::byte* const values, grow(quantized_, hidden.rows * cols * bits(dtype) / 8));
  MORACLE_TRY(std::byte* const scales, grow(scales_, hidden.rows * form.num_scales * 4));
  const Rows codes{
      {values, dtype, hidden.rows, cols, cols}, reinterpret_cast<float*>(scales), form.num_scales};
  const QuantKey& key = *moe.plan().layer.scheme.activation;
  if (hidden.rows > 0)
    MORACLE_CHECK(kernel_device(device_).ops().quantize(hidden, key, codes, stream));
  return codes;
}

// Copies the rows of all messages to device memory, grouped by source rank.
Result<AllToAllExperts::Received> AllToAllExperts::unpack(
    const DispatchMessage& form, const Rows& like,
    std::span<const std::span<const std::byte>> messages, SendPlan& plan) {
  for (size_t r = 0; r < messages.size(); ++r) {
    MORACLE_TRY(const DispatchMessage::Head head,
                form.read_head(messages[r], static_cast<int64_t>(r)));
    plan.recv_counts.push_back(head.rows);
    plan.slot_recv_counts.push_back(head.slots);
  }
  const int64_t cols = like.values.cols, all = plan.num_received();
  const int64_t row_bytes = cols * bits(like.values.dtype) / 8, scale_bytes = like.num_scales * 4;
  MORACLE_TRY(std::byte* const rows, grow(received_, all * (row_bytes + scale_bytes)));
  std::byte* const scales = rows + all * row_bytes;
  Received received;
  received.rows = {{rows, like.values.dtype, all, cols, cols},
                   reinterpret_cast<float*>(scales),
                   like.num_scales};
  received.ids.resize(all * form.top_k);
  received.weights.resize(all * form.top_k);
  int64_t row = 0;
  for (size_t r = 0; r < messages.size(); ++r) {
    const int64_t count = plan.recv_counts[r], slots = count * form.top_k;
    if (count == 0) continue;
    const DispatchMessage::Offsets at = form.offsets(count);
    const std::byte* const from = messages[r].data();
    std::memcpy(received.ids.data() + row * form.top_k, from + at.ids, slots * 4);
    std::memcpy(received.weights.data() + row * form.top_k, from + at.weights, slots * 4);
    std::memcpy(rows + row * form.row_bytes, from + at.rows, count * form.row_bytes);
    std::memcpy(scales + row * form.scale_bytes, from + at.scales, count * form.scale_bytes);
    row += count;
  }
  return received;
}

Result<AllToAllExperts::Received> AllToAllExperts::dispatch(FusedMoe& moe, const Matrix& hidden,
                                                            SendPlan& plan, Stream stream) {
  // Quantize before sending: codes are fewer bytes.
  MORACLE_TRY(const Rows from, quantize(moe, hidden, stream));
  const int64_t cols = from.values.cols, row_bytes = cols * bits(from.values.dtype) / 8,
                scale_bytes = from.num_scales * 4, sent = plan.num_sent();
  const auto rank = static_cast<size_t>(group_.rank());
  const bool in_message = exchange_.through_host();
  const DispatchMessage form{moe.plan().layer.top_k, in_message ? row_bytes : 0,
                             in_message ? scale_bytes : 0};
  int64_t bytes = 0;
  for (const int64_t rows : plan.send_counts) bytes += form.offsets(rows).bytes;
  if (static_cast<int64_t>(messages_.size()) < bytes) messages_.resize(bytes);
  // Device index of the rows to gather, then the identity order of their columns.
  std::vector<int32_t> gathered = plan.row_tokens;
  for (int64_t c = 0; c < cols; ++c) gathered.push_back(static_cast<int32_t>(c));
  const size_t index_bytes = gathered.size() * sizeof(int32_t);
  MORACLE_TRY(std::byte* const index, grow(index_, static_cast<int64_t>(index_bytes)));
  MORACLE_CHECK(device_.upload(index, gathered.data(), index_bytes, stream));
  const ColumnOrders columns{index + sent * 4, 0, cols, 1};
  const auto gather = [&](int64_t first, int64_t count, std::byte* rows,
                          std::byte* scales) -> Status {
    if (count == 0) return {};
    return kernel_device(device_).ops().gather_columns(
        {from, index_.as<int32_t>() + first, nullptr, count}, columns,
        {{rows, from.values.dtype, count, cols, cols},
         reinterpret_cast<float*>(scales),
         from.num_scales},
        stream);
  };
  std::vector<Group::Block> send;
  std::byte* to = messages_.data();
  int64_t row = 0;
  for (int64_t r = 0; r < group_.size(); ++r) {
    const int64_t count = plan.send_counts[r], slot = row * form.top_k;
    const DispatchMessage::Offsets at = form.offsets(count);
    form.write({count, plan.slot_send_counts[r]}, plan.ids.data() + slot,
               plan.weights.data() + slot, to);
    if (in_message) MORACLE_CHECK(gather(row, count, to + at.rows, to + at.scales));
    if (r != group_.rank()) sent_bytes_ += form.payload(count);
    send.push_back({to, static_cast<size_t>(at.bytes)});
    to += at.bytes;
    row += count;
  }
  MORACLE_TRY(std::byte* const rows,
              grow(sent_, in_message ? 0 : sent * (row_bytes + scale_bytes)));
  std::byte* const scales = rows + sent * row_bytes;
  if (!in_message) MORACLE_CHECK(gather(0, sent, rows, scales));
  // This rank's own message is not copied.
  const Group::Block own = std::exchange(send[rank], {});
  received_messages_.resize(send.size());
  MORACLE_CHECK(group_.exchange_messages(send, received_messages_));
  std::vector<std::span<const std::byte>> messages;
  for (const Group::Message& message : received_messages_)
    messages.emplace_back(message.memory.data(), message.bytes);
  messages[rank] = {own.data, own.bytes};
  MORACLE_TRY(Received received, unpack(form, from, messages, plan));
  if (!in_message) {
    std::byte* const values = static_cast<std::byte*>(received.rows.values.data);
    MORACLE_CHECK(all_to_all(rows, plan.send_counts, values, plan.recv_counts, row_bytes, stream));
    if (scale_bytes > 0) {
      MORACLE_CHECK(all_to_all(scales, plan.send_counts, values + plan.num_received() * row_bytes,
                               plan.recv_counts, scale_bytes, stream));
    }
  }
  const size_t size = received.ids.size() * 4;
  MORACLE_TRY(std::byte* const ids, grow(ids_, static_cast<int64_t>(size)));
  MORACLE_TRY(std::byte* const weights, grow(weights_, static_cast<int64_t>(size)));
  MORACLE_CHECK(device_.upload(ids, received.ids.data(), size, stream));
  MORACLE_CHECK(device_.upload(weights, received.weights.data(), size, stream));
  MORACLE_CHECK(device_.synchronize(stream));  // before `gathered` is destroyed
  return received;
}

}  // namespace moracle
