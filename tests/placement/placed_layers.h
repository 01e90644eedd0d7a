// Layers on two devices for tests: the second device is another CPU device, with a row of its own.
#pragma once

#include <set>

#include "moe/layer_on_rows.h"
#include "moracle/placement.h"

namespace moracle::testing::placed {

inline constexpr int64_t kTokens = 9, kExperts = 6;

struct RowNames {
  std::string host, slots;
};

inline Request request_of(const LayerSpec& spec, const std::string& row) {
  return {.layer = spec, .max_num_tokens = kTokens, .backend = row, .platform = Platform::kCpu};
}

inline Selection select_slots(const LayerSpec& spec, const std::string& row, int64_t num_slots) {
  Request request = request_of(spec, row);
  request.parallel = must(slots_of(spec.num_experts, num_slots));
  return select(request, Machine::here());
}

inline std::shared_ptr<DevicePair> device_pair() {
  return std::make_shared<DevicePair>(std::make_shared<Workspace>(must(open_device("cpu", 2))),
                                      std::make_shared<Workspace>(must(open_device("cpu", 1))));
}

inline Result<PlacedMoe> make(const LayerSpec& spec, const RowNames& rows, int64_t num_slots,
                              uint64_t seed = 3,
                              std::shared_ptr<DevicePair> devices = device_pair()) {
  return PlacedMoe::make(conformance::random_weights(spec, seed),
                         select(request_of(spec, rows.host), Machine::here()),
                         select_slots(spec, rows.slots, num_slots), std::move(devices));
}

inline std::vector<float> output_of(PlacedMoe& moe, TokenBatch batch) {
  const int64_t hidden = moe.host_plan().layer.hidden_size;
  std::vector<float> output(batch.hidden.size(), NAN);
  must(moe.apply(Matrix::f32(batch.hidden.data(), batch.tokens, hidden), {batch.ids.data()},
                 {batch.weights.data()}, Matrix::f32(output.data(), batch.tokens, hidden)));
  return output;
}

inline TokenBatch batch_of(const LayerSpec& spec, uint32_t seed = 5) {
  TokenBatch batch = random_batch(spec, kTokens, seed);
  for (size_t i = 0; i < batch.ids.size(); i += 7) batch.ids[i] = -1;
  return batch;
}

/// Every part of the sum is within the bound of the row that computes it.
inline conformance::Expected expected_of_both(const DescribedWeights& weights,
                                              const TokenBatch& batch, const RowNames& rows) {
  conformance::Expected want = expected_of(weights, batch, rows.host);
  const conformance::Expected other = expected_of(weights, batch, rows.slots);
  for (size_t i = 0; i < want.bound.size(); ++i)
    want.bound[i] += other.bound[i] + std::fabs(want.output[i] - other.output[i]);
  return want;
}

/// The row that the oracle chooses and the portable one, each beside every row.
inline std::vector<RowNames> pairs_of_rows(const LayerSpec& spec) {
  const std::vector<std::string> rows = cpu_rows(spec);
  std::set<std::string> hosts = {rows.front()};
  if (rows.size() > 1) hosts.insert("cpu");
  std::vector<RowNames> pairs;
  for (const std::string& host : hosts)
    for (const std::string& slots : rows) pairs.push_back({host, slots});
  return pairs;
}

inline LayerSpec layer_of(const Scheme& scheme) {
  return odd_layer(scheme, kExperts, 3);
}
inline LayerSpec layer_of(const char* scheme) {
  return layer_of(*parse_scheme(scheme));
}
inline const Scheme kStatic{kFp8StaticTensorSym, kFp8StaticTensorSym};

/// Lets every move pay.
inline constexpr PolicyOptions kEager{{.host_us = 10, .slot_us = 1, .move_us = 0, .bytes = 1}, 8};

}  // namespace moracle::testing::placed
