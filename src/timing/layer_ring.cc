// Times layers round-robin over several routings. bench::measure probes the limits before and
// after.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>

#include "base/scalar.h"
#include "base/text.h"
#include "timing/layer_calls.h"
#include "timing/random_layer.h"

namespace moracle::timing {
namespace {

constexpr int64_t kMostLayers = 16;

float to_float(const std::byte* at, DType dtype) {
  uint16_t half = 0;
  float whole = 0;
  if (dtype == DType::kF32) return std::memcpy(&whole, at, sizeof whole), whole;
  std::memcpy(&half, at, sizeof half);
  return dtype == DType::kBF16 ? bf16_to_float(half) : f16_to_float(half);
}

// Repeats a fixed number of random values at shifting columns. Drawing each value anew would take
// ten seconds for the largest batches.
std::vector<float> random_activations(int64_t num_tokens, int64_t hidden_size) {
  constexpr size_t kDrawn = (1 << 20) - 3;  // no hidden size divides it
  std::vector<float> values(num_tokens * hidden_size);
  std::mt19937_64 engine(static_cast<uint64_t>(num_tokens));
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = i < kDrawn ? normal(engine) : values[i - kDrawn];
  return values;
}

}  // namespace

Error cancelled() {
  return {ErrorKind::kCancelled, "", "bench", "", "stopped on request"};
}

Status check_finite(Device& device, const Matrix& output) {
  const int64_t size = bits(output.dtype) / 8, count = output.rows * output.cols;
  std::vector<std::byte> host(count * size);
  MORACLE_CHECK(device.download(host.data(), output.data, host.size()));
  MORACLE_CHECK(device.synchronize());
  for (int64_t i = 0; i < count; ++i) {
    const float value = to_float(host.data() + i * size, output.dtype);
    if (std::isfinite(value)) continue;
    return Error{ErrorKind::kUnsupported, "", "bench",
                 "finite output, because the weights are finite",
                 str("element ", i, " is ", value)};
  }
  return {};
}

Result<LayerRing> LayerRing::make(const Selection& selection, const std::shared_ptr<Device>& device,
                                  int64_t enough_bytes, int64_t most_bytes,
                                  const Progress& progress) {
  MORACLE_TRY(const Plan plan, selection.chosen());
  if (plan.layer.linear) {
    return Error{ErrorKind::kUnsupported, "", plan.layer.name, "a layer of experts",
                 "it is one linear layer"};
  }
  const int64_t each = std::max<int64_t>(plan.weight_bytes, 1);
  const int64_t room = (most_bytes - plan.workspace_bytes) / each;
  if (room < 1) {
    return Error{ErrorKind::kOutOfMemory, "", plan.layer.name,
                 str(plan.weight_bytes + plan.workspace_bytes, " bytes for one layer"),
                 str("the limit is ", most_bytes, " bytes, so that half of the memory stays free")};
  }
  const int64_t count = std::min({(enough_bytes + each - 1) / each, room, kMostLayers});
  auto workspace = std::make_shared<Workspace>(device);
  std::vector<FusedMoe> layers;
  for (int64_t i = 0; i < std::max<int64_t>(count, 1); ++i) {
    MORACLE_TRY(FusedMoe layer, FusedMoe::make(random_layer(plan.layer, static_cast<uint64_t>(i)),
                                               selection, workspace, progress));
    layers.push_back(std::move(layer));
  }
  return LayerRing(device, std::move(layers));
}

Result<std::vector<double>> LayerRing::time(int64_t num_tokens, double seconds,
                                            const Progress& progress) {
  MORACLE_TRY(Times times, time(num_tokens, routings(num_tokens), seconds, progress));
  return std::move(times.seconds);
}

Result<LayerRing::Times> LayerRing::time(int64_t num_tokens, const std::vector<Routed>& routed,
                                         double seconds, const Progress& progress) {
  // The CPU runs each call immediately; other devices take several calls before the first is done.
  return device_->platform() == Platform::kCpu
             ? time_calls(num_tokens, routed, seconds, progress)
             : time_enqueued(num_tokens, routed, seconds, progress);
}

Result<LayerRing::Times> LayerRing::time_calls(int64_t num_tokens,
                                               const std::vector<Routed>& routed, double seconds,
                                               const Progress& progress) {
  const int64_t hidden_size = plan().layer.hidden_size;
  const std::vector<float> host = random_activations(num_tokens, hidden_size);
  MORACLE_TRY(const Buffer hidden, upload(*device_, host));
  MORACLE_TRY(const Buffer output, device_->allocate(hidden.bytes()));
  std::vector<OnDevice> tables;
  for (const Routed& routing : routed) {
    MORACLE_TRY(OnDevice there, upload(*device_, routing));
    tables.push_back(std::move(there));
  }
  // Use every pair of layer and routing once before repeating any.
  size_t next = 0;
  auto once = [&]() -> Result<double> {
    if (progress && !progress(0, 0)) return cancelled();
    const OnDevice& there = tables[next / layers_.size() % tables.size()];
    FusedMoe& layer = layers_[next++ % layers_.size()];
    const auto start = std::chrono::steady_clock::now();
    MORACLE_CHECK(layer.apply(Matrix::f32(hidden.as<float>(), num_tokens, hidden_size),
                              {there.ids.as<int32_t>()}, {there.weights.as<float>()},
                              Matrix::f32(output.as<float>(), num_tokens, hidden_size)));
    MORACLE_CHECK(device_->synchronize());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  // The first run touches the workspace's pages. If a run takes longer than `seconds`, it is the
  // only one.
  MORACLE_TRY(const double first, once());
  MORACLE_CHECK(check_finite(*device_, Matrix::f32(output.as<float>(), num_tokens, hidden_size)));
  std::vector<double> times;
  double spent = first;
  if (first > seconds) times.push_back(first);
  while (first <= seconds && (spent < seconds || times.size() < 3)) {
    MORACLE_TRY(const double one, once());
    times.push_back(one);
    spent += one;
    const double share = std::min(spent / seconds, 1.0);
    if (progress && !progress(static_cast<int64_t>(share * 1000), 1000)) return cancelled();
  }
  return Times{std::move(times), static_cast<int64_t>(tables.size())};
}

}  // namespace moracle::timing
