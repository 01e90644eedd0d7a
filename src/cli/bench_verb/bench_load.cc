// moracle bench --load: time from files to a ready model, beside reading the same files.
#include "bench/load.h"

#include <algorithm>
#include <iostream>

#include "base/printable.h"
#include "base/text.h"
#include "bench_verb/bench.h"
#include "options/model_options.h"
#include "terminal.h"

namespace moracle::cli {
namespace {

std::vector<std::string> backends_of(const std::vector<Choice>& choices) {
  std::vector<std::string> names;
  for (const Choice& choice : choices) {
    const std::string name(moracle::name(*choice.selection.plan->backend));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

double weight_bytes_per_second(const bench::LoadTime& time) {
  return static_cast<double>(time.weight_bytes) / time.seconds;
}

std::string memory_text(const BenchOptions& options, const bench::LoadTime& time) {
  const std::string weights = str(megabytes(time.weight_bytes), " of packed weights");
  if (time.copy_bytes_per_second > 0) {
    const double share = weight_bytes_per_second(time) / time.copy_bytes_per_second;
    return str("  copying from pinned memory to ", options.device, " runs at ",
               rounded(time.copy_bytes_per_second / 1e9, 2), " GB/s: ", weights, " arrive at ",
               rounded(weight_bytes_per_second(time) / 1e9, 2), " GB/s, ", rounded(share * 100, 0),
               " % of that\n");
  }
  return str("  allocating memory for ", weights, " runs at ",
             rounded(time.touch_bytes_per_second() / 1e9, 2), " GB/s\n");
}

Json document(const BenchOptions& options, const bench::LoadTime& time) {
  Json json = {{"model", options.load},
               {"cold", options.cold},
               {"threads", time.threads},
               {"backends", backends_of(time.choices)},
               {"bytes", time.source_bytes},
               {"weight_bytes", time.weight_bytes},
               {"runs", time.runs},
               {"seconds", time.seconds},
               {"open_seconds", time.open_seconds},
               {"gb_per_s", time.bytes_per_second() / 1e9},
               {"read_gb_per_s", time.read_bytes_per_second() / 1e9},
               {"share_of_reading", time.share_of_reading()}};
  if (time.copy_bytes_per_second > 0) {
    json["device"] = options.device;
    json["copy_gb_per_s"] = time.copy_bytes_per_second / 1e9;
    json["weight_gb_per_s"] = weight_bytes_per_second(time) / 1e9;
    json["share_of_copying"] = weight_bytes_per_second(time) / time.copy_bytes_per_second;
  } else {
    json["fresh_memory_gb_per_s"] = time.touch_bytes_per_second() / 1e9;
  }
  return json;
}

std::string to_text(const BenchOptions& options, const bench::LoadTime& time) {
  return str("  ", printable(options.load), ", ", megabytes(time.source_bytes), ", backends ",
             join(backends_of(time.choices)), ", ", time.threads,
             time.threads == 1 ? " thread" : " threads", "\n  ready after ",
             rounded(time.seconds, 2), " s (median of ", time.runs, " runs; opened after ",
             rounded(time.open_seconds, 2), " s): ", rounded(time.bytes_per_second() / 1e9, 2),
             " GB/s\n  one thread reads the files ",
             options.cold ? "from the disk" : "from the page cache", " at ",
             rounded(time.read_bytes_per_second() / 1e9, 2), " GB/s: loading reaches ",
             rounded(time.share_of_reading() * 100, 0), " % of that\n", memory_text(options, time));
}

}  // namespace

int run_load_bench(const BenchOptions& options) {
  if (!options.model_shape.empty() || options.all_backends) {
    return fail({ErrorKind::kInvalidArgument, "", "--load",
                 "a command without --model-shape and --all-backends", "one of them is given"});
  }
  bench::LoadOptions loading;
  loading.seconds = options.seconds;
  loading.cold = options.cold;
  CLI_TRY(loading.model.backend, BackendMap::parse(options.backend));
  CLI_TRY(loading.model.device, parse_device(options.device));
  loading.model.threads = options.threads;
  loading.model.pin = options.pin;
  CLI_TRY(loading.model.quantization, parse_quantization(options.quantization));
  CLI_TRY(loading.model.activations, parse_activations(options.activations));
  CLI_TRY(loading.model.weights, parse_weights(options.weights));
  keep_kernels(loading.model, options.json);
  CLI_TRY(loading.model.tuned, read_tuning(options.cache, options.threads, loading.model.device));
  ProgressBar bar("loading");
  loading.model.progress = bar.callback();
  CLI_TRY(const bench::LoadTime time, bench::measure_load(options.load, loading));
  bar.clear();
  if (options.json)
    print(document(options, time));
  else
    std::cout << to_text(options, time);
  return kDone;
}

}  // namespace moracle::cli
