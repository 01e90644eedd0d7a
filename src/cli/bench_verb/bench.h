// Shared by the modes of `moracle bench`: layer, whole model, loading.
#pragma once

#include <optional>

#include "bench/bench.h"
#include "bench_verb/bench_anchors.h"
#include "command.h"
#include "ranks/ranks.h"

namespace moracle::cli {

struct BenchOptions {
  std::string shapes = "qwen3-30b-a3b", schemes = "int8-w8a8", tokens = "1,16,256";
  std::string backend = "auto", device = "cpu";
  std::string model_shape, model, cache, anchors;
  std::string load, quantization, activations, weights = "packed", kv_cache = "auto",
                                               output_scheme = "bf16";
  std::string without;  ///< CPU features to hide
  int64_t layers = 2, context = 4096, prompt = 0;
  std::vector<int64_t> batches = {1};
  bool no_graphs = false;
  int64_t gpu_memory = 0, cpu_memory = 0;
  std::string routing_trace;
  int64_t speculate = 0;  ///< drafts per step
  double acceptance = 0.7;
  int threads = 0;
  int64_t probe_megabytes = 0;
  double seconds = 1, zipf = 0;
  bool pin = false, all_backends = false, cold = false, json = false;
  RankArguments ranks;
  std::vector<int64_t> exchange_bytes;  ///< with --parallel: time the exchange instead of layers
};

/// One row of the table.
struct BenchRow {
  std::string shape, scheme, backend;
  bool chosen = false;  ///< the oracle's choice
  bench::Measurement measured;
  std::optional<AnchorCell> anchors;
  std::vector<MatrixPlan> matrices;
};
/// A requested backend that cannot serve the layer.
struct BenchRefusal {
  std::string shape, scheme, backend, reason;
};
struct BenchReport {
  Limits limits;
  std::string activations;  ///< value of --activations
  double zipf = 0;          ///< value of --zipf
  std::vector<BenchRow> rows;
  std::vector<BenchRefusal> refused;
};

/// {"threads", "buffer_bytes", "read_gb_per_s", "gop_per_s": {"f32 avx2": …}}. For a GPU: "device"
/// and "model" instead of "threads".
Json to_json(const Limits& limits);
/// {"limits", "rows": [{"shape", "scheme", "backend", …}], "refused"}, and "activations" if
/// requested. Rows of a GPU also have "us_eager" and "us_host". Cells with anchors also have
/// "best_public" and "vllm": {"impl", "us", "ratio"}. "matrices" are those of plan_json.
Json to_json(const BenchReport& report);
/// One line, with a newline.
std::string describe(const Limits& limits);
/// The table, then the rejected backends.
std::string describe(const BenchReport& report);

/// Layers to time on several ranks.
struct RankLayers {
  std::vector<bench::LayerShape> shapes;
  std::vector<Scheme> schemes;
  std::vector<int64_t> tokens;  ///< tokens per rank
};
/// Times layers whose tokens are exchanged between ranks, or the exchange alone. Returns an exit
/// code.
int run_rank_bench(const BenchOptions& options, const RankLayers& wanted);

/// Memory size of a device.
int64_t device_memory(const DeviceName& device);
/// Returns the bandwidth and throughput probe for a device.
Result<std::unique_ptr<LimitsProbe>> make_probe(const BenchOptions& options,
                                                const std::shared_ptr<Device>& device,
                                                const Progress& progress);
/// Random weights have the activations of their --scheme; kernels may only round floats to bf16.
/// Errors: int8, fp8 and 16bit, with the advice to choose a --scheme with such activations.
Status check_random_activations(ActivationPrecision activations);
/// True if kernels may round float activations to bf16. Errors: unknown words; those of
/// check_random_activations.
Result<bool> rounds_to_bf16(const BenchOptions& options);
/// Memory that a benchmark may fill: half of the device's memory, minus the memory of the probe.
int64_t bench_memory(const LimitsProbe& probe);

/// Benchmarks a whole model instead of one layer.
int run_model_bench(const BenchOptions& options);
/// Benchmarks loading a checkpoint instead.
int run_load_bench(const BenchOptions& options);

}  // namespace moracle::cli
