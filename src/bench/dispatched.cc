#include "bench/dispatched.h"

#include <algorithm>
#include <random>

#include "base/try.h"
#include "bench/bench.h"
#include "bench/rank_timing.h"
#include "kernels/ops.h"
#include "parallel/dispatch/all_to_all_experts.h"
#include "parallel/dispatch/gathered_experts.h"

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

struct RankLayer {
  FusedMoe moe;
  ExpertCopies copies;
};

Result<std::vector<RankLayer>> make_layers(const DispatchedLayers& layers) {
  const Request& request = layers.selection.request;
  const auto workspace = std::make_shared<Workspace>(layers.device);
  std::vector<RankLayer> made;
  for (int64_t l = 0; l < layers.num_layers; ++l) {
    MORACLE_TRY(FusedMoe moe,
                FusedMoe::make(random_layer(request.layer, static_cast<uint64_t>(l + 1)),
                               layers.selection, workspace));
    MORACLE_TRY(ExpertCopies copies,
                ExpertCopies::gather(*layers.group, moe.plan().experts, /*one_each=*/true));
    made.push_back({std::move(moe), std::move(copies)});
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
  MORACLE_TRY(std::vector<RankLayer> made, make_layers(layers));
  Device& device = *layers.device;
  AllToAllExperts all_to_all(*layers.group, *layers.exchange, device);
  GatheredExperts gathered_experts(*layers.group, *layers.exchange, device);
  const auto num_layers = static_cast<double>(layers.num_layers);
  std::vector<DispatchedTime> times;
  for (const int64_t count : tokens) {
    MORACLE_TRY(const RankTokens own, make_tokens(layers.selection.request.layer, count,
                                                  layers.num_layers, layers.group->rank(), device));
    const auto run = [&](auto& experts, size_t num_run) -> Status {
      for (size_t l = 0; l < num_run; ++l)
        MORACLE_CHECK(experts.run(made[l].moe, made[l].copies, own.hidden, own.ids[l],
                                  own.weights[l], own.output, {}));
      return {};
    };
    const auto gathered = [&] { return run(gathered_experts, made.size()); };
    const auto counted = [&] { return run(all_to_all, made.size()); };
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
    const int64_t before = all_to_all.sent_bytes();
    MORACLE_CHECK(run(all_to_all, 1));
    time.sent_bytes = all_to_all.sent_bytes() - before;
    MORACLE_TRY(time.us_counted, per_layer(counted));
    times.push_back(time);
  }
  return times;
}

}  // namespace moracle::bench
