// Times a layer, with probes of the limits before and after.
#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "bench/bench.h"

namespace moracle::bench {
namespace {

// The p-quantile of sorted values.
double quantile(const std::vector<double>& sorted, double p) {
  return sorted[static_cast<size_t>(std::lround(p * static_cast<double>(sorted.size() - 1)))];
}

}  // namespace

Result<Measurement> measure(LayerRing& ring, int64_t num_tokens, const MeasureOptions& options,
                            LimitsProbe& probe, std::span<const Peak> peaks,
                            const Progress& progress) {
  const Plan& plan = ring.plan();
  const LayerSpec& layer = plan.layer;
  const std::vector<Routed> routed = ring.routings(num_tokens, options.zipf);
  Measurement m;
  m.num_tokens = num_tokens;
  for (const MatrixPlan& matrix : plan.matrices)
    m.ops += matrix_ops(matrix.shape, num_tokens * layer.top_k);
  auto count_bytes = [&](int64_t calls) {
    double distinct = 0;
    for (int64_t i = 0; i < calls; ++i)
      distinct += static_cast<double>(routed[i % routed.size()].distinct);
    m.bytes = std::llround(distinct / static_cast<double>(calls) *
                           static_cast<double>(expert_bytes(layer)));
  };
  count_bytes(static_cast<int64_t>(routed.size()));

  // Probe both limits right before and right after: the load of a shared machine changes.
  double reads = 0, compute = 0;
  auto probe_limits = [&]() -> Status {
    MORACLE_TRY(const double read, probe.read_bytes_per_second());
    reads += read / 2;
    const double us_memory = static_cast<double>(m.bytes) / read * 1e6;
    std::string_view probed;
    double probed_ops = 0;
    for (const MatrixPlan& matrix : plan.matrices) {
      const Peak* peak = peak_for(matrix, num_tokens, peaks);
      if (peak == nullptr) continue;
      const double ops =
          static_cast<double>(matrix_ops(matrix.shape, num_tokens * layer.top_k)) * 1e6;
      const bool matters = ops / peak->ops_per_second > us_memory / 4;
      if (matters && probed != peak->name) {
        probed = peak->name;
        MORACLE_TRY(probed_ops, probe.ops_per_second(probed));
      }
      compute += ops / (matters ? probed_ops : peak->ops_per_second) / 2;
      m.peak = peak->name;
    }
    return {};
  };
  MORACLE_CHECK(probe_limits());
  MORACLE_TRY(LayerRing::Times timed, ring.time(num_tokens, routed, options.seconds, progress));
  MORACLE_CHECK(probe_limits());
  count_bytes(timed.calls);
  std::vector<double>& times = timed.seconds;
  std::sort(times.begin(), times.end());
  m.runs = static_cast<int64_t>(times.size());
  m.us_median = quantile(times, 0.5) * 1e6;
  m.us_min = times.front() * 1e6;
  m.us_p10 = quantile(times, 0.1) * 1e6;
  m.us_p90 = quantile(times, 0.9) * 1e6;
  m.us_eager = timed.us_eager;
  m.us_host = timed.us_host;
  m.read_bytes_per_second = reads;
  m.us_memory = static_cast<double>(m.bytes) / reads * 1e6;
  m.us_compute = compute;
  return m;
}

}  // namespace moracle::bench
