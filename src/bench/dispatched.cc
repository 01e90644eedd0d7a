#include "bench/dispatched.h"

#include <algorithm>
#include <random>

#include "base/try.h"
#include "bench/bench.h"
#include "bench/rank_timing.h"
#include "kernels/ops.h"
#include "parallel/dispatch/dispatched_moe.h"

namespace moracle::bench {
namespace {

// This rank's tokens, and its layers' inputs and outputs, in device memory.
struct RankTokens {
  Matrix hidden, output;
  std::vector<TopkIds> ids;  // of each layer
  std::vector<TopkWeights> weights;
  std::vector<Buffer> memory;
};

Result<void*> put_bytes(const void* from, size_t bytes, Device& device, RankTokens& tokens) {
  MORACLE_TRY(Buffer buffer, device.allocate(bytes));
  if (from != nullptr) MORACLE_CHECK(device.upload(buffer.data(), from, bytes));
  tokens.memory.push_back(std::move(buffer));
  return tokens.memory.back().data();
}

Result<RankTokens> make_tokens(const LayerSpec& spec, int64_t count, int64_t num_layers,
                               int64_t rank, Device& device) {
  RankTokens tokens;
  const DType dtype = device.activation_dtype();
  std::mt19937_64 engine(static_cast<uint64_t>(rank + 1));
  std::normal_distribution<float> normal;
  const int64_t values = count * spec.hidden_size;
  const auto bytes = static_cast<size_t>(values * bits(dtype) / 8);
  std::vector<float> floats(values);
  for (float& value : floats) value = normal(engine);
  MORACLE_TRY(void* const wide, put_bytes(floats.data(), floats.size() * 4, device, tokens));
  MORACLE_TRY(void* const x, put_bytes(nullptr, bytes, device, tokens));
  MORACLE_TRY(void* const y, put_bytes(nullptr, bytes, device, tokens));
  tokens.hidden = {x, dtype, count, spec.hidden_size, spec.hidden_size};
  tokens.output = {y, dtype, count, spec.hidden_size, spec.hidden_size};
  MORACLE_CHECK(kernel_device(device).ops().convert(
      {wide, DType::kF32, count, spec.hidden_size, spec.hidden_size}, tokens.hidden, {}));
  for (int64_t l = 0; l < num_layers; ++l) {
    const Routed routed =
        random_routings(spec, count, static_cast<uint64_t>(rank * 1000 + l + 1)).front();
    MORACLE_TRY(void* const ids,
                put_bytes(routed.ids.data(), routed.ids.size() * 4, device, tokens));
    MORACLE_TRY(void* const weights,
                put_bytes(routed.weights.data(), routed.weights.size() * 4, device, tokens));
    tokens.ids.push_back({static_cast<const int32_t*>(ids)});
    tokens.weights.push_back({static_cast<const float*>(weights)});
  }
  return tokens;
}

Result<std::vector<DispatchedMoe>> make_layers(const DispatchedLayers& layers) {
  const Request& request = layers.selection.request;
  std::vector<ExpertMap> maps;
  for (int64_t r = 0; r < layers.group->size(); ++r) {
    Parallelism parallel = request.parallel;
    parallel.ep_rank = r;
    MORACLE_TRY(ExpertMap map, parallel.map(request.layer.num_experts));
    maps.push_back(std::move(map));
  }
  const auto workspace = std::make_shared<Workspace>(layers.device);
  std::vector<DispatchedMoe> made;
  for (int64_t l = 0; l < layers.num_layers; ++l) {
    MORACLE_TRY(FusedMoe moe,
                FusedMoe::make(random_layer(request.layer, static_cast<uint64_t>(l + 1)),
                               layers.selection, workspace));
    MORACLE_TRY(DispatchedMoe layer, DispatchedMoe::make(std::move(moe), maps, layers.group,
                                                         layers.exchange, layers.device));
    made.push_back(std::move(layer));
  }
  return made;
}

// How often all layers run in one round.
int64_t passes_of(int64_t num_tokens) {
  return std::clamp<int64_t>(4096 / num_tokens, 2, 20);
}

}  // namespace

Result<std::vector<DispatchedTime>> time_dispatched(const DispatchedLayers& layers,
                                                    const std::vector<int64_t>& tokens) {
  MORACLE_TRY(std::vector<DispatchedMoe> made, make_layers(layers));
  Device& device = *layers.device;
  const auto num_layers = static_cast<double>(layers.num_layers);
  std::vector<DispatchedTime> times;
  for (const int64_t count : tokens) {
    MORACLE_TRY(const RankTokens own, make_tokens(layers.selection.request.layer, count,
                                                  layers.num_layers, layers.group->rank(), device));
    const auto each = [&](const auto& call) -> Status {
      for (size_t l = 0; l < made.size(); ++l)
        MORACLE_CHECK(call(made[l], own.ids[l], own.weights[l]));
      return {};
    };
    const auto gathered = [&] {
      return each([&](DispatchedMoe& layer, TopkIds ids, TopkWeights weights) {
        return layer.apply_gathered(own.hidden, ids, weights, own.output);
      });
    };
    const auto counted = [&] {
      return each([&](DispatchedMoe& layer, TopkIds ids, TopkWeights weights) {
        return layer.apply(own.hidden, ids, weights, own.output);
      });
    };
    DispatchedTime time{count};
    const auto per_layer = [&](const std::function<Status()>& call) -> Result<double> {
      MORACLE_TRY(const double us, time_together(call, passes_of(count), *layers.group, device));
      return us / num_layers;
    };
    MORACLE_TRY(time.us_gathered, per_layer(gathered));
    if (layers.exchange->in_graphs()) {
      MORACLE_TRY(const std::unique_ptr<Graph> graph, device.record(gathered));
      if (graph != nullptr) {
        MORACLE_TRY(time.us_replayed, per_layer([&] { return graph->replay(); }));
      }
    }
    ExpertBatches* const batches = layers.exchange->batches();
    if (batches != nullptr && count <= batches->max_tokens()) {
      MORACLE_TRY(const std::unique_ptr<Graph> graph, device.record([&] {
        return each([&](DispatchedMoe& layer, TopkIds ids, TopkWeights weights) {
          return layer.send_batch(own.hidden, ids, weights, own.output);
        });
      }));
      MORACLE_TRY(time.us_sent, per_layer([&] { return graph->replay(); }));
    }
    const int64_t before = made.front().sent_bytes();
    MORACLE_CHECK(counted());
    time.sent_bytes = made.front().sent_bytes() - before;
    MORACLE_TRY(time.us_counted, per_layer(counted));
    times.push_back(time);
  }
  return times;
}

}  // namespace moracle::bench
