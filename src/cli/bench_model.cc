// moracle bench --model-shape: a step of decoding, and what each part of it takes.
#include "models/bench_model.h"

#include <algorithm>
#include <iostream>

#include "base/text.h"
#include "bench.h"
#include "terminal.h"
#include "tuning_cache.h"

namespace moracle::cli {
namespace {

std::vector<std::string> backends_of(const bench::Decode& decode) {
  std::vector<std::string> names;
  for (const Choice& choice : decode.choices) {
    const std::string name(choice.selection.plan->backend->name);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

Json document(const BenchOptions& options, const Limits& limits, const bench::Decode& decode) {
  const double all = decode.us_all_layers();
  Json parts = Json::array();
  for (const bench::DecodePart& part : decode.parts) {
    parts.push_back({{"part", part.name},
                     {"us", part.us},
                     {"us_all_layers", decode.us_all_layers(part)},
                     {"share_all_layers", decode.us_all_layers(part) / all}});
  }
  return {{"limits", to_json(limits)},
          {"model_shape", options.model_shape},
          {"scheme", options.schemes},
          {"layers", decode.num_layers},
          {"all_layers", decode.all_layers},
          {"context", decode.context},
          {"kv_cache", options.kv_cache},
          {"threads", limits.threads},
          {"backends", backends_of(decode)},
          {"weight_bytes", decode.weight_bytes},
          {"steps", decode.steps},
          {"us_median", decode.us_median},
          {"us_min", decode.us_min},
          {"tokens_per_second", 1e6 / decode.us_median},
          {"us_all_layers", all},
          {"tokens_per_second_all_layers", 1e6 / all},
          {"parts", parts}};
}

std::string to_text(const BenchOptions& options, const Limits& limits,
                    const bench::Decode& decode) {
  const double all = decode.us_all_layers();
  Table table;
  table.row({"part", "µs", str("µs in ", decode.all_layers, " layers"), "share there"});
  for (const bench::DecodePart& part : decode.parts) {
    const double us = decode.us_all_layers(part);
    table.row({part.name, rounded(part.us), rounded(us, 0), rounded(us / all * 100) + " %"});
  }
  return str(describe(limits), "  ", options.model_shape, ", ", options.schemes, ", ",
             decode.num_layers, " of ", decode.all_layers, " layers, ", decode.context,
             " tokens in the cache (", options.kv_cache, "), on ", join(backends_of(decode)),
             "\n\n", table.text({1, 2, 3}), "\n  ", rounded(1e6 / decode.us_median),
             " tokens per second as built (", rounded(decode.us_median / 1e3),
             " ms in the median of ", decode.steps, " steps); ", rounded(1e6 / all), " with all ",
             decode.all_layers, " layers\n");
}

}  // namespace

int run_model_bench(const BenchOptions& options) {
  CLI_TRY(const bench::ModelShape shape, bench::find_model(options.model_shape));
  bench::DecodeOptions decoding;
  CLI_TRY(decoding.scheme, parse_scheme(options.schemes));
  // For the probe alone: the model opens its own.
  CLI_TRY(const std::shared_ptr<Device> device, open_device(options.device, 1));
  CLI_TRY(const std::unique_ptr<LimitsProbe> probe, make_probe(options, device));
  ProgressBar bar("measuring");
  decoding.num_layers = options.layers;
  decoding.context = options.context;
  decoding.seconds = options.seconds;
  decoding.most_bytes = bench_memory(*probe);
  decoding.model.backend = options.backend;
  decoding.model.kv_cache = options.kv_cache;
  decoding.model.device = options.device;
  decoding.model.threads = options.threads;
  decoding.model.pin = options.pin;
  CLI_TRY(decoding.model.tuned, read_tuning(options.cache, options.threads));
  decoding.model.progress = bar.callback();
  CLI_TRY(const bench::Decode decode, bench::decode(shape, decoding));
  CLI_TRY(const Limits limits, probe->measure());
  bar.clear();
  if (options.json)
    print(document(options, limits, decode));
  else
    std::cout << to_text(options, limits, decode);
  return kDone;
}

}  // namespace moracle::cli
