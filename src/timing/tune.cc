// Times the backends that serve a layer, so that the oracle can choose by time.
#include <algorithm>
#include <chrono>
#include <map>

#include "base/median.h"
#include "base/text.h"
#include "base/try.h"
#include "kernels/device/device_memory.h"
#include "oracle/tuned.h"
#include "timing/layer_ring.h"

namespace moracle {
namespace {

constexpr double kHopeless = 8;
// Large enough that a cache holds no single token's experts. More bytes would take longer to make.
constexpr int64_t kEnoughBytes = 256 << 20;

Status check_tokens(const std::vector<int64_t>& tokens) {
  const auto wrong = std::find_if(tokens.begin(), tokens.end(), [](int64_t n) { return n < 1; });
  if (!tokens.empty() && wrong == tokens.end()) return {};
  return Error{ErrorKind::kInvalidArgument, "", "tokens", "at least one number, each at least 1",
               tokens.empty() ? "it is empty" : str("it has ", *wrong)};
}

}  // namespace

Result<TunedLayer> tune(const LayerSpec& layer, const Machine& machine,
                        const std::shared_ptr<Device>& device, const TuneOptions& options,
                        const Progress& progress) {
  MORACLE_CHECK(check_tokens(options.tokens));
  const auto start = std::chrono::steady_clock::now();
  auto left = [&] {
    const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - start;
    return options.seconds - gone.count();
  };
  Machine untuned = machine;
  untuned.tuned.clear();
  Request request;
  request.layer = layer;
  request.max_num_tokens = *std::max_element(options.tokens.begin(), options.tokens.end());
  request.bf16_activations = options.bf16_activations;
  request.platform = options.device.platform;
  if (options.device.platform != Platform::kCpu) request.device_index = options.device.index;
  const Selection selection = select(request, untuned);
  MORACLE_CHECK(selection.chosen());
  const int64_t most_bytes =
      options.most_bytes > 0 ? options.most_bytes : memory_of(machine, options.device) / 2;
  const auto rows = std::count_if(selection.considered.begin(), selection.considered.end(),
                                  [](const Verdict& verdict) { return verdict.accepted(); });
  const double each =
      options.seconds / 2 / static_cast<double>(rows) / static_cast<double>(options.tokens.size());

  TunedLayer tuned{tuned_name(request), {}};
  // The backends get random ids and weights, so times do not depend on the routing.
  if (layer.routing.score == Score::kUnknown) request.layer.routing = {};
  std::map<int64_t, double> best;
  for (const Verdict& verdict : selection.considered) {
    if (!verdict.accepted()) continue;
    // Time the first backend even on a busy machine: without it the oracle has nothing to compare.
    const bool is_first = tuned.times.empty();
    if (!is_first && left() < each) break;
    request.backend = name(*verdict.backend);
    MORACLE_TRY(timing::LayerRing ring,
                timing::LayerRing::make(select(request, untuned), device, kEnoughBytes, most_bytes,
                                        progress));
    for (const int64_t tokens : options.tokens) {
      if (!is_first && left() <= 0) break;
      MORACLE_TRY(const std::vector<double> times,
                  ring.time(tokens, std::clamp(left(), 0.0, each), progress));
      const double us = median(times) * 1e6;
      tuned.times.push_back({std::string(name(*verdict.backend)), tokens, us});
      const auto [known, added] = best.try_emplace(tokens, us);
      if (us > known->second * kHopeless) break;
      known->second = std::min(known->second, us);
    }
  }
  return tuned;
}

}  // namespace moracle
