#include "parallel/dispatched_moe.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "base/try.h"
#include "kernels/ops.h"
#include "moe/moe_access.h"

namespace moracle {

// Host memory: what this rank sends, rank after rank.
struct DispatchedMoe::Routes {
  std::vector<int32_t> tokens;   // of each sent row
  std::vector<int32_t> ids;      // [sent rows, top_k]; -1: an expert of another rank
  std::vector<float> weights;    // likewise
  std::vector<int32_t> returns;  // [tokens, ranks]: the row that comes back from a rank; -1: none
  std::vector<int64_t> sends, receives;  // rows to and from each rank
  int64_t num_sent() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_received() const {
    return std::accumulate(receives.begin(), receives.end(), int64_t{0});
  }
};

struct DispatchedMoe::Arrived {
  Rows rows;  // quantized, or floats without scales
  TopkIds ids;
  TopkWeights weights;
};

Result<DispatchedMoe> DispatchedMoe::make(FusedMoe moe, std::vector<ExpertMap> maps,
                                          std::shared_ptr<Group> group,
                                          std::shared_ptr<Exchange> exchange,
                                          std::shared_ptr<Device> device) {
  MORACLE_CHECK(check_cover(maps));
  const auto rank = static_cast<size_t>(group->rank());
  if (static_cast<int64_t>(maps.size()) != group->size() || !(maps[rank] == moe.plan().experts)) {
    return Error{ErrorKind::kInvalidArgument, "", moe.plan().layer.name,
                 str("a map for each of ", group->size(), " ranks, that of this rank as planned"),
                 str("there are ", maps.size())};
  }
  DispatchedMoe made(std::move(moe), std::move(group), std::move(exchange), std::move(device));
  made.holder_.resize(maps[0].num_experts());
  for (size_t r = 0; r < maps.size(); ++r)
    for (const int32_t e : maps[r].global()) made.holder_[e] = static_cast<int32_t>(r);
  return made;
}

Result<std::byte*> DispatchedMoe::memory(Buffer& buffer, int64_t bytes) {
  const auto need = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  if (buffer.bytes() < need) {
    MORACLE_CHECK(device_->synchronize());  // earlier work may read the old memory
    MORACLE_TRY(buffer, device_->allocate(need));
  }
  return buffer.as<std::byte>();
}

Result<DispatchedMoe::Routes> DispatchedMoe::route(int64_t num_tokens, TopkIds ids,
                                                   TopkWeights weights, Stream stream) {
  const int64_t top_k = moe_.plan().layer.top_k, size = group_->size();
  const auto num_experts = static_cast<int32_t>(holder_.size());
  std::vector<int32_t> all_ids(num_tokens * top_k);
  std::vector<float> all_weights(num_tokens * top_k);
  const size_t bytes = all_ids.size() * sizeof(int32_t);
  if (num_tokens > 0) {
    MORACLE_CHECK(device_->download(all_ids.data(), ids.data, bytes, stream));
    MORACLE_CHECK(device_->download(all_weights.data(), weights.data, bytes, stream));
    MORACLE_CHECK(device_->synchronize(stream));
  }
  for (size_t i = 0; i < all_ids.size(); ++i) {
    if (all_ids[i] >= -1 && all_ids[i] < num_experts) continue;
    return Error{ErrorKind::kInvalidArgument, "", "topk_ids",
                 str("-1, or an expert from 0 to ", num_experts - 1), str("one is ", all_ids[i])};
  }
  Routes routes;
  routes.returns.assign(num_tokens * size, -1);
  for (int64_t r = 0; r < size; ++r) {
    const auto is_there = [&](int32_t id) { return id >= 0 && holder_[id] == r; };
    const int64_t before = routes.num_sent();
    for (int64_t t = 0; t < num_tokens; ++t) {
      const std::span<const int32_t> own(all_ids.data() + t * top_k, top_k);
      if (std::none_of(own.begin(), own.end(), is_there)) continue;
      routes.returns[t * size + r] = static_cast<int32_t>(routes.num_sent());
      routes.tokens.push_back(static_cast<int32_t>(t));
      for (int64_t j = 0; j < top_k; ++j) {
        routes.ids.push_back(is_there(own[j]) ? own[j] : -1);
        routes.weights.push_back(all_weights[t * top_k + j]);
      }
    }
    routes.sends.push_back(routes.num_sent() - before);
  }
  // Counts first, so that every rank knows the sizes.
  routes.receives.resize(size);
  std::vector<Group::Part> send, receive;
  for (int64_t r = 0; r < size; ++r) {
    send.push_back({reinterpret_cast<std::byte*>(&routes.sends[r]), sizeof(int64_t)});
    receive.push_back({reinterpret_cast<std::byte*>(&routes.receives[r]), sizeof(int64_t)});
  }
  MORACLE_CHECK(group_->exchange(send, receive));
  return routes;
}

Status DispatchedMoe::exchange_rows(const std::byte* from, const std::vector<int64_t>& from_counts,
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
  for (int64_t r = 0; r < group_->size(); ++r)
    if (r != group_->rank()) sent_bytes_ += from_counts[r] * row_bytes;
  return exchange_->exchange(place(const_cast<std::byte*>(from), from_counts), place(to, to_counts),
                             stream);
}

Result<DispatchedMoe::Arrived> DispatchedMoe::dispatch(const Matrix& hidden, const Routes& routes,
                                                       Stream stream) {
  Ops& ops = device_->ops();
  const int64_t top_k = moe_.plan().layer.top_k;
  const int64_t sent = routes.num_sent(), received = routes.num_received();
  Rows from{hidden, nullptr, 0};
  if (const Rows form = MoeAccess::input_form(moe_); form.values.cols > 0) {
    // Quantized once, where the token is: fewer bytes travel.
    const DType dtype = form.values.dtype;
    const int64_t cols = form.values.cols;
    MORACLE_TRY(std::byte* const values, memory(quantized_, hidden.rows * cols * bits(dtype) / 8));
    MORACLE_TRY(std::byte* const scales, memory(scales_, hidden.rows * form.num_scales * 4));
    from = {{values, dtype, hidden.rows, cols, cols},
            reinterpret_cast<float*>(scales),
            form.num_scales};
    const QuantKey& key = *moe_.plan().layer.scheme.activation;
    if (hidden.rows > 0) MORACLE_CHECK(ops.quantize(hidden, key, from, stream));
  }
  const DType dtype = from.values.dtype;
  const int64_t cols = from.values.cols, row_bytes = cols * bits(dtype) / 8;
  const int64_t scale_bytes = from.num_scales * 4;
  // Copies the rows that travel, one for each rank that a token goes to.
  std::vector<int32_t> host_index = routes.tokens;
  for (int64_t c = 0; c < cols; ++c) host_index.push_back(static_cast<int32_t>(c));
  const auto index_bytes = static_cast<int64_t>(host_index.size() * sizeof(int32_t));
  MORACLE_TRY(std::byte* const index, memory(index_, index_bytes));
  MORACLE_CHECK(device_->upload(index, host_index.data(), index_bytes, stream));
  MORACLE_TRY(std::byte* const out, memory(sent_, sent * (row_bytes + scale_bytes)));
  auto* const out_scales = reinterpret_cast<float*>(out + sent * row_bytes);
  const ColumnOrders all_columns{index + sent * 4, 0, cols, 1};
  if (sent > 0) {
    MORACLE_CHECK(ops.gather_columns(
        {from, reinterpret_cast<const int32_t*>(index), nullptr, sent}, all_columns,
        {{out, dtype, sent, cols, cols}, out_scales, from.num_scales}, stream));
  }
  Arrived arrived;
  MORACLE_TRY(std::byte* const in, memory(arrived_, received * (row_bytes + scale_bytes)));
  arrived.rows = {{in, dtype, received, cols, cols},
                  reinterpret_cast<float*>(in + received * row_bytes),
                  from.num_scales};
  MORACLE_CHECK(exchange_rows(out, routes.sends, in, routes.receives, row_bytes, stream));
  if (scale_bytes > 0)
    MORACLE_CHECK(exchange_rows(out + sent * row_bytes, routes.sends, in + received * row_bytes,
                                routes.receives, scale_bytes, stream));
  // Ids and weights are on the host already.
  std::vector<int32_t> ids(received * top_k);
  std::vector<float> weights(received * top_k);
  const auto swap_on_host = [&](const void* mine, void* theirs) {
    std::vector<Group::Part> send, receive;
    auto* sent_part = static_cast<std::byte*>(const_cast<void*>(mine));
    auto* received_part = static_cast<std::byte*>(theirs);
    for (int64_t r = 0; r < group_->size(); ++r) {
      send.push_back({sent_part, static_cast<size_t>(routes.sends[r] * top_k * 4)});
      receive.push_back({received_part, static_cast<size_t>(routes.receives[r] * top_k * 4)});
      sent_part += send.back().bytes;
      received_part += receive.back().bytes;
      if (r != group_->rank()) sent_bytes_ += static_cast<int64_t>(send.back().bytes);
    }
    return group_->exchange(send, receive);
  };
  MORACLE_CHECK(swap_on_host(routes.ids.data(), ids.data()));
  MORACLE_CHECK(swap_on_host(routes.weights.data(), weights.data()));
  MORACLE_TRY(std::byte* const to_ids, memory(ids_, received * top_k * 4));
  MORACLE_TRY(std::byte* const to_weights, memory(weights_, received * top_k * 4));
  MORACLE_CHECK(device_->upload(to_ids, ids.data(), ids.size() * 4, stream));
  MORACLE_CHECK(device_->upload(to_weights, weights.data(), weights.size() * 4, stream));
  MORACLE_CHECK(device_->synchronize(stream));  // before the host's vectors are destroyed
  arrived.ids.data = reinterpret_cast<const int32_t*>(to_ids);
  arrived.weights.data = reinterpret_cast<const float*>(to_weights);
  return arrived;
}

Status DispatchedMoe::run(const Arrived& arrived, const Matrix& results, Stream stream) {
  const int64_t top_k = moe_.plan().layer.top_k;
  for (int64_t first = 0; first < results.rows; first += moe_.plan().max_num_tokens) {
    const int64_t count = std::min(moe_.plan().max_num_tokens, results.rows - first);
    const TopkIds ids{arrived.ids.data + first * top_k};
    const TopkWeights weights{arrived.weights.data + first * top_k};
    const Matrix out = results.slice(first, count);
    Rows rows = arrived.rows;
    rows.values = rows.values.slice(first, count);
    if (rows.num_scales == 0) {
      MORACLE_CHECK(moe_.apply(rows.values, ids, weights, out, stream));
      continue;
    }
    rows.scales += first * rows.num_scales;
    MORACLE_CHECK(MoeAccess::apply(moe_, rows, ids, weights, out, stream));
  }
  return {};
}

Status DispatchedMoe::apply(const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                            const Matrix& output, Stream stream) {
  const int64_t cols = output.cols, row_bytes = cols * bits(output.dtype) / 8;
  if (hidden.stride != hidden.cols || output.stride != cols || hidden.rows != output.rows ||
      output.dtype != moe_.plan().activation_dtype || hidden.dtype != output.dtype) {
    return Error{ErrorKind::kInvalidArgument, "", moe_.plan().layer.name,
                 str("hidden and output in ", name(moe_.plan().activation_dtype), " without gaps"),
                 str("they are ", name(hidden.dtype), " and ", name(output.dtype))};
  }
  MORACLE_TRY(const Routes routes, route(hidden.rows, topk_ids, topk_weights, stream));
  MORACLE_TRY(const Arrived arrived, dispatch(hidden, routes, stream));
  const int64_t received = routes.num_received(), sent = routes.num_sent();
  MORACLE_TRY(std::byte* const results, memory(results_, received * row_bytes));
  MORACLE_CHECK(run(arrived, {results, output.dtype, received, cols, cols}, stream));
  MORACLE_TRY(std::byte* const returned, memory(returned_, sent * row_bytes));
  MORACLE_CHECK(exchange_rows(results, routes.receives, returned, routes.sends, row_bytes, stream));
  if (hidden.rows == 0) return {};
  MORACLE_TRY(std::byte* const slots, memory(slots_, hidden.rows * group_->size() * 4));
  MORACLE_CHECK(device_->upload(slots, routes.returns.data(), routes.returns.size() * 4, stream));
  MORACLE_CHECK(device_->ops().combine({returned, output.dtype, sent, cols, cols},
                                       reinterpret_cast<const int32_t*>(slots), nullptr,
                                       group_->size(), output, stream));
  return device_->synchronize(stream);
}

Status DispatchedMoe::apply_gathered(const Matrix& hidden, TopkIds topk_ids,
                                     TopkWeights topk_weights, const Matrix& output,
                                     Stream stream) {
  const Plan& plan = moe_.plan();
  const int64_t size = group_->size(), tokens = hidden.rows, all = tokens * size;
  if (hidden.stride != hidden.cols || output.stride != output.cols ||
      output.dtype != plan.activation_dtype || hidden.dtype != output.dtype ||
      all > plan.max_num_tokens) {
    return Error{ErrorKind::kInvalidArgument, "", plan.layer.name,
                 str("at most ", plan.max_num_tokens / size, " tokens in ",
                     name(plan.activation_dtype), " without gaps"),
                 str("there are ", tokens, " in ", name(hidden.dtype))};
  }
  if (tokens == 0) return {};
  const int64_t row_bytes = hidden.cols * bits(hidden.dtype) / 8, top_k = plan.layer.top_k;
  // Sized for the largest call, so that graphs keep their memory.
  const int64_t most = plan.max_num_tokens;
  MORACLE_TRY(std::byte* const base, memory(gathered_, most * (2 * row_bytes + 8 * top_k)));
  std::byte *const rows = base, *const sums = rows + most * row_bytes,
                   *const ids = sums + most * row_bytes, *const weights = ids + most * top_k * 4;
  const auto bytes = [tokens](int64_t of_token) { return static_cast<size_t>(tokens * of_token); };
  const Exchange::Gathered parts[] = {{hidden.data, bytes(row_bytes), rows},
                                      {topk_ids.data, bytes(top_k * 4), ids},
                                      {topk_weights.data, bytes(top_k * 4), weights}};
  MORACLE_CHECK(exchange_->all_gather(parts, stream));
  const Matrix result{sums, output.dtype, all, output.cols, output.cols};
  MORACLE_CHECK(moe_.apply({rows, hidden.dtype, all, hidden.cols, hidden.cols},
                           {reinterpret_cast<const int32_t*>(ids)},
                           {reinterpret_cast<const float*>(weights)}, result, stream));
  return exchange_->reduce_scatter(result, output, stream);
}

}  // namespace moracle
