// Steps of all ranks, and the way there: rows to the ranks of their experts.
#include "parallel/dispatch.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "kernels/ops.h"
#include "moe/moe_access.h"
#include "parallel/dispatch_arrived.h"

namespace moracle {

Result<std::byte*> Dispatch::memory(Buffer& buffer, int64_t bytes) {
  const auto need = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  if (buffer.bytes() < need) {
    MORACLE_CHECK(device_.synchronize());  // earlier work may read the old memory
    MORACLE_TRY(buffer, device_.allocate(need));
  }
  return buffer.as<std::byte>();
}

Result<bool> Dispatch::begin_step(int64_t num_tokens, bool rests) {
  struct Part {
    int64_t num_tokens, rests;
  };
  const Part own{num_tokens, rests ? 1 : 0};
  std::vector<Part> all(group_.size());
  MORACLE_CHECK(
      group_.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all))));
  most_tokens_ = 0;
  bool goes_on = false;
  for (const Part& part : all) {
    most_tokens_ = std::max(most_tokens_, part.num_tokens);
    goes_on = goes_on || part.rests == 0;
  }
  return goes_on;
}

bool Dispatch::gathers() const {
  // Up to so many ranks nearly every token has an expert on each of them.
  constexpr int64_t kMostGathering = 4;
  return !same_bits_ && exchange_.in_graphs() && group_.size() <= kMostGathering;
}

Status Dispatch::run(FusedMoe& moe, const ExpertCopies& copies, const Matrix& hidden,
                     int32_t* topk_ids, const float* topk_weights, const Matrix& output,
                     Stream stream) {
  if (most_tokens_ == 0) return {};
  if (!gathers()) return apply(moe, copies, hidden, {topk_ids}, {topk_weights}, output, stream);
  const int64_t top_k = moe.plan().layer.top_k, unused = most_tokens_ - hidden.rows;
  const auto all_rows = [this](Matrix x) {
    x.rows = most_tokens_;
    return x;
  };
  if (unused > 0) {
    const auto most = std::max<int64_t>(unused, moe.plan().max_num_tokens) * top_k;
    const auto bytes = static_cast<size_t>(most) * sizeof(int32_t);
    if (no_ids_.bytes() < bytes) {
      MORACLE_TRY(std::byte* const to, memory(no_ids_, static_cast<int64_t>(bytes)));
      const std::vector<int32_t> none(most, -1);
      MORACLE_CHECK(device_.upload(to, none.data(), bytes, stream));
      MORACLE_CHECK(device_.synchronize(stream));  // before `none` is destroyed
    }
    MORACLE_CHECK(device_.copy(topk_ids + hidden.rows * top_k, no_ids_.data(),
                               unused * top_k * sizeof(int32_t), stream));
  }
  return apply_gathered(moe, copies, all_rows(hidden), {topk_ids}, {topk_weights}, all_rows(output),
                        stream);
}

Status Dispatch::exchange_rows(const std::byte* from, const std::vector<int64_t>& from_counts,
                               std::byte* to, const std::vector<int64_t>& to_counts,
                               int64_t row_bytes, Stream stream) {
  const auto place = [row_bytes](std::byte* data, const std::vector<int64_t>& counts) {
    std::vector<Group::Part> parts;
    for (const int64_t count : counts) {
      parts.push_back({data, static_cast<size_t>(count * row_bytes)});
      data += count * row_bytes;
    }
    return parts;
  };
  for (int64_t r = 0; r < group_.size(); ++r)
    if (r != group_.rank()) sent_bytes_ += from_counts[r] * row_bytes;
  return exchange_.exchange(place(const_cast<std::byte*>(from), from_counts), place(to, to_counts),
                            stream);
}

template <class T>
Status Dispatch::exchange_on_host(const std::vector<T>& from, const Routes& routes, int64_t top_k,
                                  std::vector<T>& to) {
  to.resize(routes.num_received() * top_k);
  auto* sent = reinterpret_cast<std::byte*>(const_cast<T*>(from.data()));
  auto* received = reinterpret_cast<std::byte*>(to.data());
  std::vector<Group::Part> send, receive;
  for (int64_t r = 0; r < group_.size(); ++r) {
    send.push_back({sent, static_cast<size_t>(routes.sends[r] * top_k) * sizeof(T)});
    receive.push_back({received, static_cast<size_t>(routes.receives[r] * top_k) * sizeof(T)});
    sent += send.back().bytes;
    received += receive.back().bytes;
    if (r != group_.rank()) sent_bytes_ += static_cast<int64_t>(send.back().bytes);
  }
  return group_.exchange(send, receive);
}

Result<Rows> Dispatch::in_codes(FusedMoe& moe, const Matrix& hidden, Stream stream) {
  const Rows form = MoeAccess::input_form(moe);
  if (form.values.cols == 0) return Rows{hidden, nullptr, 0};
  const DType dtype = form.values.dtype;
  const int64_t cols = form.values.cols;
  MORACLE_TRY(std::byte* const values, memory(quantized_, hidden.rows * cols * bits(dtype) / 8));
  MORACLE_TRY(std::byte* const scales, memory(scales_, hidden.rows * form.num_scales * 4));
  const Rows codes{
      {values, dtype, hidden.rows, cols, cols}, reinterpret_cast<float*>(scales), form.num_scales};
  const QuantKey& key = *moe.plan().layer.scheme.activation;
  if (hidden.rows > 0) MORACLE_CHECK(device_.ops().quantize(hidden, key, codes, stream));
  return codes;
}

Result<Dispatch::Arrived> Dispatch::send_rows(FusedMoe& moe, const Matrix& hidden,
                                              const Routes& routes, Stream stream) {
  const int64_t top_k = moe.plan().layer.top_k;
  const int64_t sent = routes.num_sent(), received = routes.num_received();
  // Quantized once, where the token is: fewer bytes travel.
  MORACLE_TRY(const Rows from, in_codes(moe, hidden, stream));
  const DType dtype = from.values.dtype;
  const int64_t cols = from.values.cols, row_bytes = cols * bits(dtype) / 8;
  const int64_t scale_bytes = from.num_scales * 4;
  // Copies the rows that travel, one for each rank that a token goes to.
  std::vector<int32_t> host_index = routes.tokens;
  for (int64_t c = 0; c < cols; ++c) host_index.push_back(static_cast<int32_t>(c));
  const auto index_bytes = static_cast<int64_t>(host_index.size() * sizeof(int32_t));
  MORACLE_TRY(std::byte* const index, memory(index_, index_bytes));
  MORACLE_CHECK(device_.upload(index, host_index.data(), index_bytes, stream));
  MORACLE_TRY(std::byte* const out, memory(sent_, sent * (row_bytes + scale_bytes)));
  auto* const out_scales = reinterpret_cast<float*>(out + sent * row_bytes);
  const ColumnOrders all_columns{index + sent * 4, 0, cols, 1};
  if (sent > 0) {
    MORACLE_CHECK(device_.ops().gather_columns(
        {from, reinterpret_cast<const int32_t*>(index), nullptr, sent}, all_columns,
        {{out, dtype, sent, cols, cols}, out_scales, from.num_scales}, stream));
  }
  Arrived arrived;
  MORACLE_TRY(std::byte* const in, memory(arrived_, received * (row_bytes + scale_bytes)));
  arrived.rows = {{in, dtype, received, cols, cols},
                  reinterpret_cast<float*>(in + received * row_bytes),
                  from.num_scales};
  MORACLE_CHECK(exchange_rows(out, routes.sends, in, routes.receives, row_bytes, stream));
  if (scale_bytes > 0) {
    MORACLE_CHECK(exchange_rows(out + sent * row_bytes, routes.sends, in + received * row_bytes,
                                routes.receives, scale_bytes, stream));
  }
  // Ids and weights are on the host already.
  std::vector<float> weights;
  MORACLE_CHECK(exchange_on_host(routes.ids, routes, top_k, arrived.host_ids));
  MORACLE_CHECK(exchange_on_host(routes.weights, routes, top_k, weights));
  const size_t bytes = weights.size() * 4;
  MORACLE_TRY(std::byte* const to_ids, memory(ids_, static_cast<int64_t>(bytes)));
  MORACLE_TRY(std::byte* const to_weights, memory(weights_, static_cast<int64_t>(bytes)));
  MORACLE_CHECK(device_.upload(to_ids, arrived.host_ids.data(), bytes, stream));
  MORACLE_CHECK(device_.upload(to_weights, weights.data(), bytes, stream));
  MORACLE_CHECK(device_.synchronize(stream));  // before the host's vectors are destroyed
  arrived.ids.data = reinterpret_cast<const int32_t*>(to_ids);
  arrived.weights.data = reinterpret_cast<const float*>(to_weights);
  return arrived;
}

Status Dispatch::apply(FusedMoe& moe, const ExpertCopies& copies, const Matrix& hidden,
                       TopkIds topk_ids, TopkWeights topk_weights, const Matrix& output,
                       Stream stream) {
  const Plan& plan = moe.plan();
  if (hidden.stride != hidden.cols || output.stride != output.cols || hidden.rows != output.rows ||
      output.dtype != plan.activation_dtype || hidden.dtype != output.dtype) {
    return Error{ErrorKind::kInvalidArgument, "", plan.layer.name,
                 str("hidden and output in ", name(plan.activation_dtype), " without gaps"),
                 str("they are ", name(hidden.dtype), " and ", name(output.dtype))};
  }
  std::vector<int32_t> ids(hidden.rows * plan.layer.top_k);
  std::vector<float> weights(ids.size());
  if (hidden.rows > 0) {
    MORACLE_CHECK(device_.download(ids.data(), topk_ids.data, ids.size() * 4, stream));
    MORACLE_CHECK(device_.download(weights.data(), topk_weights.data, ids.size() * 4, stream));
    MORACLE_CHECK(device_.synchronize(stream));
  }
  MORACLE_TRY(const Routes routes, find_routes(ids, weights, plan.layer.top_k, copies, group_));
  MORACLE_TRY(const Arrived arrived, send_rows(moe, hidden, routes, stream));
  return same_bits_ ? return_slots(moe, routes, arrived, topk_ids, topk_weights, output, stream)
                    : return_rows(moe, routes, arrived, output, stream);
}

}  // namespace moracle
