// The way there: each token's row, experts and weights to the ranks that hold its experts. One
// message from rank to rank carries all of it, because each further exchange costs the network's
// delay.
#include <algorithm>
#include <cstring>

#include "base/try.h"
#include "kernels/ops.h"
#include "moe/moe_access.h"
#include "parallel/dispatch/dispatch_arrived.h"
#include "parallel/dispatch/dispatch_message.h"

namespace moracle {

Result<DispatchMessage::Head> DispatchMessage::read_head(std::span<const std::byte> message,
                                                         int64_t rank) const {
  Head head;
  const auto bytes = static_cast<int64_t>(message.size());
  if (message.size() >= sizeof head) std::memcpy(&head, message.data(), sizeof head);
  const bool fits = bytes >= places(0).bytes && head.rows >= 0 && head.rows <= bytes / top_k &&
                    head.slots >= 0 && head.slots <= head.rows * top_k;
  if (fits && places(head.rows).bytes == bytes) return head;
  return Error{ErrorKind::kIo, "", str("rank ", rank), "rows of the same layer",
               str("it sent a message of ", bytes, " bytes for ", head.rows,
                   " rows: the ranks do not agree")};
}

Result<Rows> Dispatch::in_codes(FusedMoe& moe, const Matrix& hidden, Stream stream) {
  const Rows form = ready_form(moe.plan());
  if (form.values.cols == 0) return Rows{hidden, nullptr, 0};
  const DType dtype = form.values.dtype;
  const int64_t cols = form.values.cols;
  MORACLE_TRY(std::byte* const values, memory(quantized_, hidden.rows * cols * bits(dtype) / 8));
  MORACLE_TRY(std::byte* const scales, memory(scales_, hidden.rows * form.num_scales * 4));
  const Rows codes{
      {values, dtype, hidden.rows, cols, cols}, reinterpret_cast<float*>(scales), form.num_scales};
  const QuantKey& key = *moe.plan().layer.scheme.activation;
  if (hidden.rows > 0)
    MORACLE_CHECK(kernel_device(device_).ops().quantize(hidden, key, codes, stream));
  return codes;
}

// The rows that travel, one for each rank that a token goes to.
Result<ColumnOrders> Dispatch::upload_index(const Routes& routes, int64_t cols, Stream stream) {
  index_rows_ = routes.tokens;
  for (int64_t c = 0; c < cols; ++c) index_rows_.push_back(static_cast<int32_t>(c));
  const size_t bytes = index_rows_.size() * sizeof(int32_t);
  MORACLE_TRY(std::byte* const index, memory(index_, static_cast<int64_t>(bytes)));
  MORACLE_CHECK(device_.upload(index, index_rows_.data(), bytes, stream));
  return ColumnOrders{index + routes.num_sent() * 4, 0, cols, 1};
}

Status Dispatch::gather_rows(const Rows& from, const ColumnOrders& columns, int64_t first,
                             int64_t count, std::byte* rows, std::byte* scales, Stream stream) {
  if (count == 0) return {};
  const int64_t cols = from.values.cols;
  return kernel_device(device_).ops().gather_columns(
      {from, index_.as<int32_t>() + first, nullptr, count}, columns,
      {{rows, from.values.dtype, count, cols, cols},
       reinterpret_cast<float*>(scales),
       from.num_scales},
      stream);
}

// One message for each rank, one after another in `to`.
Result<std::vector<Group::Part>> Dispatch::write_messages(const DispatchMessage& form,
                                                          const Routes& routes, std::byte* to) {
  std::vector<Group::Part> parts;
  int64_t row = 0;
  for (int64_t r = 0; r < group_.size(); ++r) {
    const int64_t rows = routes.sends[r], slots = rows * form.top_k;
    const DispatchMessage::Places at = form.places(rows);
    const DispatchMessage::Head head{rows, routes.slot_sends[r]};
    std::memcpy(to, &head, sizeof head);
    std::copy_n(routes.ids.data() + row * form.top_k, slots,
                reinterpret_cast<int32_t*>(to + at.ids));
    std::copy_n(routes.weights.data() + row * form.top_k, slots,
                reinterpret_cast<float*>(to + at.weights));
    if (r != group_.rank()) sent_bytes_ += form.payload(rows);
    parts.push_back({to, static_cast<size_t>(at.bytes)});
    to += at.bytes;
    row += rows;
  }
  return parts;
}

// Puts what arrived in the order of ranks. Sets the counts of `routes`.
Result<Dispatch::Arrived> Dispatch::take_messages(
    const DispatchMessage& form, const Rows& like,
    std::span<const std::span<const std::byte>> messages, Routes& routes) {
  for (size_t r = 0; r < messages.size(); ++r) {
    MORACLE_TRY(const DispatchMessage::Head head,
                form.read_head(messages[r], static_cast<int64_t>(r)));
    routes.receives.push_back(head.rows);
    routes.slot_receives.push_back(head.slots);
  }
  const int64_t cols = like.values.cols, all = routes.num_received();
  const int64_t row_bytes = cols * bits(like.values.dtype) / 8, scale_bytes = like.num_scales * 4;
  MORACLE_TRY(std::byte* const rows, memory(arrived_, all * (row_bytes + scale_bytes)));
  std::byte* const scales = rows + all * row_bytes;
  Arrived arrived;
  arrived.rows = {{rows, like.values.dtype, all, cols, cols},
                  reinterpret_cast<float*>(scales),
                  like.num_scales};
  arrived.host_ids.resize(all * form.top_k);
  arrived.host_weights.resize(all * form.top_k);
  int64_t row = 0;
  for (size_t r = 0; r < messages.size(); ++r) {
    const int64_t count = routes.receives[r], slots = count * form.top_k;
    if (count == 0) continue;
    const DispatchMessage::Places at = form.places(count);
    const std::byte* const from = messages[r].data();
    std::memcpy(arrived.host_ids.data() + row * form.top_k, from + at.ids, slots * 4);
    std::memcpy(arrived.host_weights.data() + row * form.top_k, from + at.weights, slots * 4);
    std::memcpy(rows + row * form.row_bytes, from + at.rows, count * form.row_bytes);
    std::memcpy(scales + row * form.scale_bytes, from + at.scales, count * form.scale_bytes);
    row += count;
  }
  return arrived;
}

Result<Dispatch::Arrived> Dispatch::send_rows(FusedMoe& moe, const Matrix& hidden, Routes& routes,
                                              Stream stream) {
  // Quantized once, where the token is: fewer bytes travel.
  MORACLE_TRY(const Rows from, in_codes(moe, hidden, stream));
  const int64_t row_bytes = from.values.cols * bits(from.values.dtype) / 8,
                scale_bytes = from.num_scales * 4, sent = routes.num_sent();
  const bool whole = exchange_.through_host();
  const DispatchMessage form{moe.plan().layer.top_k, whole ? row_bytes : 0,
                             whole ? scale_bytes : 0};
  int64_t bytes = 0;
  for (const int64_t rows : routes.sends) bytes += form.places(rows).bytes;
  if (static_cast<int64_t>(messages_.size()) < bytes) messages_.resize(bytes);
  MORACLE_TRY(const std::vector<Group::Part> send, write_messages(form, routes, messages_.data()));
  MORACLE_TRY(const ColumnOrders columns, upload_index(routes, from.values.cols, stream));
  MORACLE_TRY(std::byte* const alone, memory(sent_, whole ? 0 : sent * (row_bytes + scale_bytes)));
  if (!whole)
    MORACLE_CHECK(gather_rows(from, columns, 0, sent, alone, alone + sent * row_bytes, stream));
  for (int64_t r = 0, row = 0; whole && r < group_.size(); row += routes.sends[r++]) {
    const DispatchMessage::Places at = form.places(routes.sends[r]);
    MORACLE_CHECK(gather_rows(from, columns, row, routes.sends[r], send[r].data + at.rows,
                              send[r].data + at.scales, stream));
  }
  // This rank's own message stays.
  std::vector<Group::Part> others = send;
  others[group_.rank()] = {};
  received_.resize(send.size());
  MORACLE_CHECK(group_.exchange_messages(others, received_));
  std::vector<std::span<const std::byte>> messages;
  for (const Group::Message& message : received_)
    messages.emplace_back(message.memory.data(), message.bytes);
  messages[group_.rank()] = {send[group_.rank()].data, send[group_.rank()].bytes};
  MORACLE_TRY(Arrived arrived, take_messages(form, from, messages, routes));
  if (!whole) {
    std::byte* const to = static_cast<std::byte*>(arrived.rows.values.data);
    MORACLE_CHECK(exchange_rows(alone, routes.sends, to, routes.receives, row_bytes, stream));
    if (scale_bytes > 0) {
      MORACLE_CHECK(exchange_rows(alone + sent * row_bytes, routes.sends,
                                  to + routes.num_received() * row_bytes, routes.receives,
                                  scale_bytes, stream));
    }
  }
  const size_t size = arrived.host_ids.size() * 4;
  MORACLE_TRY(std::byte* const ids, memory(ids_, static_cast<int64_t>(size)));
  MORACLE_TRY(std::byte* const weights, memory(weights_, static_cast<int64_t>(size)));
  MORACLE_CHECK(device_.upload(ids, arrived.host_ids.data(), size, stream));
  MORACLE_CHECK(device_.upload(weights, arrived.host_weights.data(), size, stream));
  MORACLE_CHECK(device_.synchronize(stream));
  arrived.ids.data = reinterpret_cast<const int32_t*>(ids);
  arrived.weights.data = reinterpret_cast<const float*>(weights);
  return arrived;
}

}  // namespace moracle
