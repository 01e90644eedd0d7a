// What `bench` prints.
#include <algorithm>

#include "base/text.h"
#include "bench.h"
#include "terminal.h"

namespace moracle::cli {
namespace {

// Three digits, whatever the size: 0.0123, 1.23, 123, 12345.
std::string three_digits(double value) {
  return rounded(value, value < 0.1 ? 4 : value < 1 ? 3 : value < 10 ? 2 : value < 100 ? 1 : 0);
}

double per_second(int64_t what, double us) {
  return static_cast<double>(what) / us * 1e-3;  // in 1e9 per second
}

}  // namespace

Json to_json(const cpu::Limits& limits) {
  Json peaks = Json::object();
  for (const cpu::Peak& peak : limits.peaks)
    peaks[std::string(peak.name)] = peak.ops_per_second / 1e9;
  return {{"threads", limits.threads},
          {"buffer_bytes", limits.buffer_bytes},
          {"read_gb_per_s", limits.read_bytes_per_second / 1e9},
          {"gop_per_s", peaks}};
}

Json to_json(const BenchReport& report) {
  Json rows = Json::array(), refused = Json::array();
  for (const BenchRow& row : report.rows) {
    const bench::Measurement& m = row.measured;
    rows.push_back({{"shape", row.shape},
                    {"scheme", row.scheme},
                    {"backend", row.backend},
                    {"num_tokens", m.num_tokens},
                    {"threads", report.limits.threads},
                    {"us_median", m.us_median},
                    {"us_min", m.us_min},
                    {"bytes", m.bytes},
                    {"ops", m.ops},
                    {"share_of_limit", m.share_of_limit()},
                    {"us_p10", m.us_p10},
                    {"us_p90", m.us_p90},
                    {"runs", m.runs},
                    {"us_floor", m.us_floor()},
                    {"read_gb_per_s", m.read_bytes_per_second / 1e9},
                    {"peak", m.peak.empty() ? Json(nullptr) : Json(m.peak)},
                    {"chosen", row.chosen}});
  }
  for (const BenchRefusal& refusal : report.refused) {
    refused.push_back({{"shape", refusal.shape},
                       {"scheme", refusal.scheme},
                       {"backend", refusal.backend},
                       {"reason", refusal.reason}});
  }
  return {{"limits", to_json(report.limits)}, {"rows", rows}, {"refused", refused}};
}

std::string describe(const cpu::Limits& limits) {
  std::vector<std::string> parts;
  for (const cpu::Peak& peak : limits.peaks)
    parts.push_back(str(peak.name, " ", three_digits(peak.ops_per_second / 1e9)));
  return str("  limits here, ", limits.threads, limits.threads == 1 ? " thread" : " threads",
             ": reads ", three_digits(limits.read_bytes_per_second / 1e9), " GB/s of ",
             megabytes(limits.buffer_bytes),
             "; GOP/s: ", parts.empty() ? "none known" : join(parts), "\n");
}

std::string describe(const BenchReport& report) {
  std::string text = describe(report.limits) + "\n";
  Table table;
  table.row({"", "shape", "scheme", "backend", "tokens", "µs", "least", "10–90 %", "GB/s", "GOP/s",
             "floor µs", "by", "of limit"});
  for (const BenchRow& row : report.rows) {
    const bench::Measurement& m = row.measured;
    table.row({row.chosen ? ">" : "", row.shape, row.scheme, row.backend,
               std::to_string(m.num_tokens), three_digits(m.us_median), three_digits(m.us_min),
               three_digits(m.us_p10) + "–" + three_digits(m.us_p90),
               three_digits(per_second(m.bytes, m.us_median)),
               three_digits(per_second(m.ops, m.us_median)), three_digits(m.us_floor()),
               m.us_memory >= m.us_compute ? "memory" : m.peak,
               rounded(m.share_of_limit() * 100, 0) + " %"});
  }
  if (!report.rows.empty()) text += table.text({4, 5, 6, 7, 8, 9, 10, 12});
  if (report.refused.empty()) return text;
  // Once for all rows and schemes that one reason keeps away.
  struct Refused {
    std::string reason;
    std::vector<std::string> backends, schemes;
  };
  std::vector<Refused> reasons;
  auto add = [](std::vector<std::string>& to, const std::string& what) {
    if (std::find(to.begin(), to.end(), what) == to.end()) to.push_back(what);
  };
  for (const BenchRefusal& refusal : report.refused) {
    auto known = std::find_if(reasons.begin(), reasons.end(),
                              [&](const Refused& one) { return one.reason == refusal.reason; });
    if (known == reasons.end()) known = reasons.insert(known, {refusal.reason, {}, {}});
    add(known->backends, refusal.backend);
    add(known->schemes, refusal.scheme);
  }
  Table refusals;
  for (const Refused& one : reasons)
    refusals.row({"no", join(one.backends), join(one.schemes), one.reason});
  return text + "\n" + refusals.text();
}

}  // namespace moracle::cli
