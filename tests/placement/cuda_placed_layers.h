// Fixture of layers on the CPU and NVIDIA GPUs.
#pragma once

#include "kernels/cuda/cuda_test.h"
#include "moe/layer_on_rows.h"
#include "moracle/placement.h"

namespace moracle::testing {

class CudaPlacedTest : public CudaTest {
 public:
  static constexpr int64_t kTokens = 9, kExperts = 6;

 protected:
  static LayerSpec layer_of_scheme(const Scheme& scheme) { return odd_layer(scheme, kExperts, 3); }
  Request request_of(const LayerSpec& spec, Platform platform) {
    return {.layer = spec, .max_num_tokens = kTokens, .platform = platform};
  }
  Selection on_host(const LayerSpec& spec) {
    return select(request_of(spec, Platform::kCpu), Machine::here());
  }
  Selection in_slots(const LayerSpec& spec, int64_t num_slots, const char* row = "") {
    Request request = request_of(spec, Platform::kCuda);
    if (*row != 0) request.backend = std::string(row);
    request.parallel = must(slots_of(spec.num_experts, num_slots));
    return select(request, Machine::here());
  }
  std::shared_ptr<DevicePair> device_pair() {
    return std::make_shared<DevicePair>(std::make_shared<Workspace>(must(open_device("cpu", 2))),
                                        std::make_shared<Workspace>(device_));
  }
  PlacedMoe make(const LayerSpec& spec, int64_t num_slots, uint64_t seed = 3,
                 std::shared_ptr<DevicePair> devices = nullptr) {
    return must(PlacedMoe::make(conformance::random_weights(spec, seed), on_host(spec),
                                in_slots(spec, num_slots),
                                devices ? std::move(devices) : device_pair()));
  }

  struct OnGpu {
    Buffer hidden, ids, weights, output;
    int64_t tokens, cols;
    Matrix in() const { return bf16_matrix(hidden, tokens, cols); }
    Matrix out() const { return bf16_matrix(output, tokens, cols); }
  };
  OnGpu put(const LayerSpec& spec, const TokenBatch& batch) {
    return {upload(to_bf16(batch.hidden)),     upload(batch.ids), upload(batch.weights),
            allocate(batch.hidden.size() * 2), batch.tokens,      spec.hidden_size};
  }
  template <class Layer>
  void enqueue(Layer& layer, const OnGpu& call) {
    must(layer.apply(call.in(), {call.ids.as<int32_t>()}, {call.weights.as<float>()}, call.out()));
  }
  std::vector<float> result(const OnGpu& call) {
    std::vector<uint16_t> bits(static_cast<size_t>(call.tokens * call.cols));
    must(device_->download(bits.data(), call.output.data(), bits.size() * 2));
    must(device_->synchronize());
    return from_bf16(bits);
  }
  template <class Layer>
  std::vector<float> output_of(Layer& layer, const TokenBatch& batch) {
    const OnGpu call = put(layer_of(layer), batch);
    enqueue(layer, call);
    return result(call);
  }
  static const LayerSpec& layer_of(const PlacedMoe& layer) { return layer.host_plan().layer; }
  static const LayerSpec& layer_of(const FusedMoe& layer) { return layer.plan().layer; }

  TokenBatch batch_of(const LayerSpec& spec, int64_t tokens = kTokens, uint32_t seed = 5) {
    TokenBatch batch = random_batch(spec, tokens, seed);
    batch.hidden = rounded_to_bf16(batch.hidden);
    for (size_t i = 0; i < batch.ids.size(); i += 7) batch.ids[i] = -1;
    return batch;
  }
  /// Within the bounds of both rows.
  conformance::Expected expected_of_both(const PlacedMoe& layer, const DescribedWeights& weights,
                                         const TokenBatch& batch) {
    const auto of = [&](const Plan& plan) {
      return conformance::expected(weights.spec, weights, batch.hidden, batch.ids, batch.weights,
                                   {}, {}, conformance::precision_of(plan));
    };
    conformance::Expected want = of(layer.slots_plan());
    const conformance::Expected other = of(layer.host_plan());
    for (size_t i = 0; i < want.bound.size(); ++i) {
      // The host's sum is rounded to bf16 before it is added, and the sum once more.
      want.bound[i] += other.bound[i] + std::fabs(want.output[i] - other.output[i]) +
                       0x1p-7 * std::fabs(want.output[i]);
    }
    return want;
  }
  bool served(const LayerSpec& spec) {
    return on_host(spec).plan.has_value() && in_slots(spec, 1).plan.has_value();
  }
};

}  // namespace moracle::testing
