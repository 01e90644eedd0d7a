// Timing on devices with queues: many calls together, each with its own layer, routing, input and
// output. They are enqueued from the host, and also replayed as one graph where the device can
// record work.
#include <algorithm>
#include <chrono>
#include <random>

#include "base/median.h"
#include "base/scalar.h"
#include "timing/layer_calls.h"

namespace moracle::timing {
namespace {

using Clock = std::chrono::steady_clock;

// Enough calls to make the gaps between graphs negligible.
int64_t calls_at_once(int64_t num_tokens) {
  return num_tokens <= 128 ? 16 : num_tokens <= 512 ? 8 : num_tokens <= 2048 ? 4 : 2;
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Random activations at memory speed: all calls share one pool of values. Later calls begin at
// another offset.
class Activations {
 public:
  explicit Activations(uint64_t seed) : values_((1 << 20) - 3) {
    std::mt19937_64 engine(seed);
    std::normal_distribution<float> normal;
    for (uint16_t& x : values_) x = float_to_bf16(normal(engine));
  }
  std::vector<uint16_t> of(int64_t call, int64_t count) const {
    std::vector<uint16_t> some(count);
    size_t from = static_cast<size_t>(call) * 65'537 % values_.size();
    for (size_t at = 0; at < some.size();) {
      const size_t copied = std::min(values_.size() - from, some.size() - at);
      std::copy_n(values_.begin() + static_cast<int64_t>(from), copied,
                  some.begin() + static_cast<int64_t>(at));
      at += copied;
      from = 0;
    }
    return some;
  }

 private:
  std::vector<uint16_t> values_;
};

// One call of the graph.
struct Call {
  FusedMoe* layer;
  const OnDevice* routing;
  Buffer hidden, output;
};

}  // namespace

Result<LayerRing::Times> LayerRing::time_enqueued(int64_t num_tokens,
                                                  const std::vector<Routed>& routed, double seconds,
                                                  const Progress& progress) {
  const int64_t hidden_size = plan().layer.hidden_size, count = num_tokens * hidden_size;
  auto matrix = [&](const Buffer& buffer) {
    return Matrix{buffer.data(), DType::kBF16, num_tokens, hidden_size, hidden_size};
  };
  std::vector<OnDevice> tables;
  for (const Routed& routing : routed) {
    MORACLE_TRY(OnDevice there, upload(*device_, routing));
    tables.push_back(std::move(there));
  }
  const Activations activations(static_cast<uint64_t>(num_tokens));
  std::vector<Call> calls;
  auto add_call = [&]() -> Status {
    const size_t i = calls.size();
    Call& call = calls.emplace_back();
    call.layer = &layers_[i % layers_.size()];
    call.routing = &tables[i % tables.size()];
    MORACLE_TRY(call.hidden, upload(*device_, activations.of(static_cast<int64_t>(i), count)));
    MORACLE_TRY(call.output, device_->allocate(call.hidden.bytes()));
    return {};
  };
  auto enqueue = [&]() -> Status {
    for (const Call& call : calls) {
      MORACLE_CHECK(call.layer->apply(matrix(call.hidden), {call.routing->ids.as<int32_t>()},
                                      {call.routing->weights.as<float>()}, matrix(call.output)));
    }
    return {};
  };
  std::vector<double> eager, host;
  auto run_eagerly = [&]() -> Status {
    const Clock::time_point start = Clock::now();
    MORACLE_CHECK(enqueue());
    const Clock::time_point enqueued = Clock::now();
    MORACLE_CHECK(device_->synchronize());
    const auto each = static_cast<double>(calls.size());
    host.push_back(seconds_between(start, enqueued) / each);
    eager.push_back(seconds_between(start, Clock::now()) / each);
    return {};
  };
  auto report = [&](double spent) -> Status {
    const double share = std::min(spent / seconds, 1.0);
    if (progress && !progress(static_cast<int64_t>(share * 1000), 1000)) return cancelled();
    return {};
  };

  // The first call loads everything that is loaded at first use. The second call tells how many
  // calls the time allows.
  MORACLE_CHECK(add_call());
  MORACLE_CHECK(run_eagerly());
  MORACLE_CHECK(check_finite(*device_, matrix(calls.front().output)));
  MORACLE_CHECK(run_eagerly());
  const int64_t time_for = std::max<int64_t>(static_cast<int64_t>(seconds / 8 / eager.back()), 1);
  const int64_t wanted = std::min(calls_at_once(num_tokens), time_for);
  while (static_cast<int64_t>(calls.size()) < wanted) MORACLE_CHECK(add_call());
  MORACLE_CHECK(run_eagerly());
  eager.clear(), host.clear();
  MORACLE_TRY(const std::unique_ptr<Graph> graph, device_->record(enqueue));
  const double eager_seconds = graph != nullptr ? seconds / 4 : seconds;
  const Clock::time_point begun = Clock::now();
  do {
    MORACLE_CHECK(run_eagerly());
    MORACLE_CHECK(report(seconds_between(begun, Clock::now())));
  } while (seconds_between(begun, Clock::now()) < eager_seconds);
  Times result;
  result.calls = static_cast<int64_t>(calls.size());
  if (graph == nullptr) {
    for (const Call& call : calls) MORACLE_CHECK(check_finite(*device_, matrix(call.output)));
    result.seconds = std::move(eager);
    return result;
  }

  MORACLE_TRY(const std::unique_ptr<Timeline> timeline, device_->timeline());
  // Each replay is enqueued while the one before runs, which hides the host time. The first replay
  // has none before it and is not counted.
  auto replay = [&](int64_t times) -> Result<std::vector<double>> {
    for (int64_t i = 0; i <= times; ++i) {
      MORACLE_CHECK(graph->replay());
      MORACLE_CHECK(timeline->mark());
    }
    MORACLE_CHECK(device_->synchronize());
    return timeline->take();
  };
  MORACLE_TRY(std::vector<double> times, replay(1));
  const int64_t at_once =
      std::clamp<int64_t>(static_cast<int64_t>(seconds * 1e6 / 8 / times.front()), 1, 64);
  times.clear();
  while (seconds_between(begun, Clock::now()) < seconds || times.size() < 3) {
    MORACLE_TRY(const std::vector<double> more, replay(at_once));
    times.insert(times.end(), more.begin(), more.end());
    MORACLE_CHECK(report(seconds_between(begun, Clock::now())));
  }
  for (const Call& call : calls) MORACLE_CHECK(check_finite(*device_, matrix(call.output)));
  for (double& time : times) time /= 1e6 * static_cast<double>(calls.size());
  result.seconds = std::move(times);
  result.us_eager = median(std::move(eager)) * 1e6;
  result.us_host = median(std::move(host)) * 1e6;
  return result;
}

}  // namespace moracle::timing
