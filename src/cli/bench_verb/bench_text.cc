// Output of `bench`.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "bench_verb/bench.h"
#include "plan_text.h"
#include "terminal.h"

namespace moracle::cli {
namespace {

// Three digits at any size: 0.0123, 1.23, 123, 12345.
std::string three_digits(double value) {
  return rounded(value, value < 0.1 ? 4 : value < 1 ? 3 : value < 10 ? 2 : value < 100 ? 1 : 0);
}

bool on_cpu(const Limits& limits) {
  return limits.model.empty();
}

Json to_json(const Anchor& anchor, const bench::Measurement& m) {
  return {{"impl", anchor.impl}, {"us", anchor.us}, {"ratio", anchor.us / m.us_median}};
}

std::string times_ours(const Anchor& anchor, const bench::Measurement& m) {
  return str(rounded(anchor.us / m.us_median, 2), " (", anchor.impl, ")");
}

// Time of public kernels relative to ours: geometric mean over the cells of the oracle's choice.
std::string means(const BenchReport& report) {
  double best = 0, vllm = 0;
  int cells = 0, of_vllm = 0;
  for (const BenchRow& row : report.rows) {
    if (!row.chosen || !row.anchors) continue;
    best += std::log(row.anchors->best_public.us / row.measured.us_median);
    ++cells;
    if (!row.anchors->vllm) continue;
    vllm += std::log(row.anchors->vllm->us / row.measured.us_median);
    ++of_vllm;
  }
  if (cells == 0) return "";
  std::string text = str("\n  time relative to Moracle, geometric mean of ", cells,
                         cells == 1 ? " row: " : " rows: ", "best public kernels ",
                         rounded(std::exp(best / cells), 2));
  if (of_vllm > 0)
    text += str("; ", of_vllm, of_vllm == 1 ? " row: " : " rows: ", "vLLM's choice ",
                rounded(std::exp(vllm / of_vllm), 2));
  return text + "\n";
}

double per_second(int64_t what, double us) {
  return static_cast<double>(what) / us * 1e-3;  // in 1e9 per second
}

}  // namespace

Json to_json(const Limits& limits) {
  Json peaks = Json::object();
  for (const Peak& peak : limits.peaks) peaks[std::string(peak.name)] = peak.ops_per_second / 1e9;
  Json json = Json::object();
  if (on_cpu(limits))
    json["threads"] = limits.threads;
  else
    json.update({{"device", limits.device}, {"model", limits.model}});
  json.update({{"buffer_bytes", limits.buffer_bytes},
               {"read_gb_per_s", limits.read_bytes_per_second / 1e9},
               {"gop_per_s", peaks}});
  return json;
}

Json to_json(const BenchReport& report) {
  Json rows = Json::array(), refused = Json::array();
  for (const BenchRow& row : report.rows) {
    const bench::Measurement& m = row.measured;
    Json json = {{"shape", row.shape},
                 {"scheme", row.scheme},
                 {"backend", row.backend},
                 {"num_tokens", m.num_tokens}};
    if (on_cpu(report.limits))
      json["threads"] = report.limits.threads;
    else
      json["device"] = report.limits.device;
    json.update({{"us_median", m.us_median},
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
                 {"chosen", row.chosen},
                 {"matrices", matrices_json(row.matrices)}});
    if (m.us_eager > 0) json.update({{"us_eager", m.us_eager}, {"us_host", m.us_host}});
    if (row.anchors) json["best_public"] = to_json(row.anchors->best_public, m);
    if (row.anchors && row.anchors->vllm) json["vllm"] = to_json(*row.anchors->vllm, m);
    rows.push_back(std::move(json));
  }
  for (const BenchRefusal& refusal : report.refused) {
    refused.push_back({{"shape", refusal.shape},
                       {"scheme", refusal.scheme},
                       {"backend", refusal.backend},
                       {"reason", refusal.reason}});
  }
  Json json = {{"limits", to_json(report.limits)}, {"rows", rows}, {"refused", refused}};
  if (!report.activations.empty()) json["activations"] = report.activations;
  if (report.zipf > 0) json["zipf"] = report.zipf;
  return json;
}

std::string describe(const Limits& limits) {
  const bool cpu = on_cpu(limits);
  std::vector<std::string> parts;
  for (const Peak& peak : limits.peaks)
    parts.push_back(str(peak.name, " ", three_digits(peak.ops_per_second / (cpu ? 1e9 : 1e12))));
  return str("  limits of this machine, ",
             cpu ? str(limits.threads, limits.threads == 1 ? " thread" : " threads")
                 : str(limits.device, " (", limits.model, ")"),
             ": reading ", three_digits(limits.read_bytes_per_second / 1e9), " GB/s, buffer of ",
             megabytes(limits.buffer_bytes),
             cpu ? "; GOP/s: " : "; TOP/s: ", parts.empty() ? "none known" : join(parts), "\n");
}

std::string describe(const BenchReport& report) {
  std::string text = describe(report.limits);
  if (!report.activations.empty()) text += str("  activations ", report.activations, "\n");
  if (report.zipf > 0)
    text += str("  experts drawn by a Zipf law with exponent ", report.zipf, "\n");
  text += "\n";
  const bool cpu = on_cpu(report.limits);
  const bool anchored = std::any_of(report.rows.begin(), report.rows.end(),
                                    [](const BenchRow& row) { return row.anchors.has_value(); });
  std::vector<std::string> head = {"",       "shape",     "scheme", "backend",
                                   "tokens", "median µs", "min µs", "10–90 %"};
  if (!cpu) head.insert(head.end(), {"eager µs", "host µs"});
  head.insert(head.end(), {"GB/s", cpu ? "GOP/s" : "TOP/s", "floor µs", "floor by", "of limit"});
  if (anchored) head.insert(head.end(), {"best public", "vLLM"});
  Table table;
  table.row(head);
  for (const BenchRow& row : report.rows) {
    const bench::Measurement& m = row.measured;
    std::vector<std::string> cells = {row.chosen ? ">" : "",
                                      row.shape,
                                      row.scheme,
                                      row.backend,
                                      std::to_string(m.num_tokens),
                                      three_digits(m.us_median),
                                      three_digits(m.us_min),
                                      three_digits(m.us_p10) + "–" + three_digits(m.us_p90)};
    if (!cpu) cells.insert(cells.end(), {three_digits(m.us_eager), three_digits(m.us_host)});
    cells.insert(cells.end(),
                 {three_digits(per_second(m.bytes, m.us_median)),
                  three_digits(per_second(m.ops, m.us_median) / (cpu ? 1 : 1000)),
                  three_digits(m.us_floor()), m.us_memory >= m.us_compute ? "memory" : m.peak,
                  rounded(m.share_of_limit() * 100, 0) + " %"});
    if (anchored) {
      const bool there = row.anchors.has_value();
      cells.push_back(there ? times_ours(row.anchors->best_public, m) : "");
      cells.push_back(there && row.anchors->vllm ? times_ours(*row.anchors->vllm, m) : "");
    }
    table.row(std::move(cells));
  }
  std::vector<size_t> numbers;
  for (size_t i = 4; i < head.size(); ++i) {
    if (head[i] != "floor by") numbers.push_back(i);
  }
  if (!report.rows.empty()) text += table.text(numbers);
  if (anchored) text += means(report);
  if (report.refused.empty()) return text;
  // One line per reason, with all backends and schemes that it rejects.
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
