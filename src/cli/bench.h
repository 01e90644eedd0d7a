// `moracle bench`: what its three ways, one layer, a whole model and loading, share.
#pragma once

#include <optional>

#include "command.h"
#include "moe/bench.h"

namespace moracle::cli {

struct BenchOptions {
  std::string shapes = "qwen3-30b-a3b", schemes = "int8-w8a8", tokens = "1,16,256";
  std::string backend = "auto", device = "cpu";
  std::string model_shape, cache;
  std::string load, quantization, activations, kv_cache = "auto";
  int64_t layers = 2, context = 4096, prompt = 0;
  std::vector<int64_t> batches = {1};
  bool no_graphs = false;
  int threads = 0;
  int64_t probe_megabytes = 0;
  double seconds = 1;
  bool pin = false, all_backends = false, cold = false, json = false;
};

/// One row of the table.
struct BenchRow {
  std::string shape, scheme, backend;
  bool chosen = false;  ///< the oracle's choice
  bench::Measurement measured;
};
/// A backend that was asked for and does not serve.
struct BenchRefusal {
  std::string shape, scheme, backend, reason;
};
struct BenchReport {
  cpu::Limits limits;
  std::vector<BenchRow> rows;
  std::vector<BenchRefusal> refused;
};

/// {"threads", "buffer_bytes", "read_gb_per_s", "gop_per_s": {"f32 avx2": …}}
Json to_json(const cpu::Limits& limits);
/// {"limits", "rows": [{"shape", "scheme", "backend", …}], "refused"}
Json to_json(const BenchReport& report);
/// One line, with a newline at its end.
std::string describe(const cpu::Limits& limits);
/// The table, then the refusals.
std::string describe(const BenchReport& report);

Result<cpu::LimitsProbe> make_probe(const BenchOptions& options);
/// The half of the machine's memory that a benchmark may fill, without what the probe has.
int64_t bench_memory(const cpu::LimitsProbe& probe);

/// A whole model instead of one layer.
int run_model_bench(const BenchOptions& options);
/// Loading a checkpoint instead.
int run_load_bench(const BenchOptions& options);

}  // namespace moracle::cli
