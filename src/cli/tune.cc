// moracle tune: times the backends that serve a model's experts on this machine, for the oracle.

#include <algorithm>
#include <iostream>

#include "base/printable.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "caches/memory_rates.h"
#include "command.h"
#include "numbers.h"
#include "options/model_options.h"
#include "terminal.h"

namespace moracle::cli {
namespace tune_verb {
namespace {

struct Options {
  std::string folder, quantization, activations, weights = "packed", cache, device = "cpu";
  double seconds = 50;
  int threads = 0;
  bool json = false;
};

// Times of both residencies are kept side by side, so a measurement is for one of them.
Result<bool> is_folded(const std::string& text) {
  MORACLE_TRY(const WeightResidency weights, parse_weights(text));
  if (weights != WeightResidency::kAuto) return weights == WeightResidency::kFolded;
  return Error{ErrorKind::kInvalidArgument, "", "--weights", "packed or folded", "it is 'auto'"};
}

// Returns one layer per distinct shape.
Result<std::vector<LayerSpec>> kinds_of(const Checkpoint& checkpoint,
                                        const QuantizationMap& quantization,
                                        ActivationPrecision activations, bool folded) {
  std::vector<LayerSpec> kinds;
  for (const int64_t layer : checkpoint.moe_layers()) {
    auto weights = checkpoint.moe_layer(layer, quantization);
    if (!weights) return weights.error();
    set_activations(*weights, activations);
    if (folded) MORACLE_CHECK(fold(*weights));
    const auto equal = std::find_if(kinds.begin(), kinds.end(), [&](const LayerSpec& kind) {
      return kind.same_but_name(weights->spec);
    });
    if (equal == kinds.end()) kinds.push_back(weights->spec);
  }
  if (!kinds.empty()) return kinds;
  return Error{ErrorKind::kUnsupported, checkpoint.folder(), "", "a model with experts",
               "no layer has experts"};
}

Json to_json(const std::string& path, const std::vector<Selection>& selections) {
  Json layers = Json::array();
  for (const Selection& selection : selections) {
    Json rows = Json::array();
    for (const Verdict& verdict : selection.considered) {
      for (const TunedTime& time : verdict.tuned)
        rows.push_back(
            {{"backend", time.backend}, {"num_tokens", time.num_tokens}, {"us_median", time.us}});
    }
    layers.push_back({{"layer", describe(selection.request.layer)},
                      {"chosen", name(*selection.plan->backend)},
                      {"rows", rows}});
  }
  return {{"cache", path}, {"layers", layers}};
}

int run(const Options& options) {
  const std::string path = options.cache.empty() ? default_tuning_cache() : options.cache;
  if (path.empty()) {
    return fail({ErrorKind::kInvalidArgument, "", "--cache", "a file for the result",
                 "it is not given, and neither XDG_CACHE_HOME nor HOME is set"});
  }
  CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(options.folder));
  CLI_TRY(const QuantizationMap quantization, parse_quantization(options.quantization));
  CLI_TRY(const ActivationPrecision activations, parse_activations(options.activations));
  CLI_TRY(const bool folded, is_folded(options.weights));
  CLI_TRY(const std::vector<LayerSpec> kinds,
          kinds_of(checkpoint, quantization, activations, folded));
  TuneOptions tuning;
  CLI_TRY(tuning.device, parse_device(options.device));
  // Check the cache before a minute of measurements.
  CLI_TRY(const std::vector<TunedLayer> before, read_tuning(path, options.threads, tuning.device));
  if (Status writable = check_tuning_writable(path); !writable) return fail(writable.error());
  CLI_TRY(const std::shared_ptr<Device> device,
          open_device(tuning.device,
                      device_options(tuning.device, options.threads, false, options.json)));
  Machine machine = Machine::here();
  tuning.seconds = options.seconds / static_cast<double>(kinds.size());
  tuning.bf16_activations = activations == ActivationPrecision::kBf16;
  ProgressBar bar("measuring");
  for (const LayerSpec& kind : kinds) {
    CLI_TRY(TunedLayer tuned, moracle::tune(kind, machine, device, tuning, bar.callback()));
    machine.tuned.push_back(std::move(tuned));
  }
  // Plans of models that are larger than a GPU estimate by them.
  const bool measures = tuning.device.platform != Platform::kCpu;
  MemoryRates rates;
  if (measures) {
    CLI_TRY(rates, measure_rates(device, options.threads, checkpoint, bar.callback()));
  }
  bar.clear();
  if (Status written = write_tuning(path, options.threads, tuning.device, machine.tuned); !written)
    return fail(written.error());
  if (measures) {
    if (Status written = write_rates(path, options.threads, tuning.device, rates); !written)
      return fail(written.error());
  }
  std::vector<Selection> selections;
  for (const LayerSpec& kind : kinds) {
    Request request;
    request.layer = kind;
    request.platform = tuning.device.platform;
    request.bf16_activations = tuning.bf16_activations;
    selections.push_back(select(request, machine));
  }
  if (options.json) {
    print(to_json(path, selections));
    return kDone;
  }
  for (const Selection& selection : selections)
    std::cout << "experts " << printable_lines(explain(selection, false)) << "\n";
  if (measures) std::cout << "memory " << describe(rates) << "\n";
  std::cout << "saved in " << printable(path) << "; other verbs on this machine read it\n";
  return kDone;
}

}  // namespace
}  // namespace tune_verb

void add_tune(CLI::App& app, Work& chosen) {
  add_verb(
      app, "tune", "Measure which backend is fastest for a model's experts on this machine",
      [](CLI::App& verb) -> Work {
        auto options = std::make_shared<tune_verb::Options>();
        verb.add_option("MODEL", options->folder, "Folder of the checkpoint, or a GGUF file")
            ->required();
        verb.add_option("--quantization", options->quantization, kQuantizationHelp);
        verb.add_option("--activations", options->activations, kActivationsHelp);
        verb.add_option("--weights", options->weights,
                        "Measure 4-bit weights beside fp8 activations packed, or folded")
            ->capture_default_str();
        verb.add_option("--seconds", options->seconds, "Seconds to spend on the whole model")
            ->check(number(0.1, 3600))
            ->capture_default_str();
        verb.add_option("--device", options->device, "cpu, cuda[:n] or opencl[:n]")
            ->capture_default_str();
        verb.add_option("--cache", options->cache, kCacheHelp);
        verb.add_option("--threads", options->threads,
                        "CPU threads; 0: all CPUs that the process may use")
            ->transform(whole(0, kMaxThreads))
            ->capture_default_str();
        verb.add_flag("--json", options->json, "Print one JSON document on stdout");
        return [options] { return tune_verb::run(*options); };
      },
      chosen);
}

}  // namespace moracle::cli
