// moracle bench: times layers of published shapes on this machine, beside its limits.
#include "bench_verb/bench.h"

#include <algorithm>
#include <charconv>
#include <iostream>

#include "base/printable.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "numbers.h"
#include "options/model_options.h"
#include "oracle/machine/masked_isa.h"
#include "terminal.h"

namespace moracle::cli {

int64_t bench_memory(const LimitsProbe& probe) {
  return probe.memory_bytes() / 2 - probe.buffer_bytes();
}

Status check_random_activations(ActivationPrecision activations) {
  const char* scheme = nullptr;
  switch (activations) {
    case ActivationPrecision::kInt8:
      scheme = "int8 activations, such as int4-w4a8-g128";
      break;
    case ActivationPrecision::kFp8:
      scheme = "fp8 activations, such as int4-w4afp8-g128";
      break;
    case ActivationPrecision::k16Bit:
      scheme = "float activations, such as fp8-w8a16-channel";
      break;
    default:
      return {};
  }
  return Error{ErrorKind::kInvalidArgument, "", "--activations",
               str("bf16, or a --scheme with ", scheme), "it is " + quote(name(activations))};
}

Result<bool> rounds_to_bf16(const BenchOptions& options) {
  MORACLE_TRY(const ActivationPrecision activations, parse_activations(options.activations));
  MORACLE_CHECK(check_random_activations(activations));
  return activations == ActivationPrecision::kBf16;
}

int64_t device_memory(const DeviceName& device) {
  const Machine here = Machine::here();
  for (const GpuInfo& gpu : here.gpus) {
    if (gpu.platform == device.platform && gpu.index == device.index) return gpu.memory_bytes;
  }
  return here.cpu.memory_bytes;
}

Result<std::unique_ptr<LimitsProbe>> make_probe(const BenchOptions& options,
                                                const std::shared_ptr<Device>& device,
                                                const Progress& progress) {
  MORACLE_TRY(const DeviceName named, parse_device(options.device));
  const int64_t bytes = options.probe_megabytes * 1'000'000, most = device_memory(named) / 4;
  if (bytes > most) {
    return Error{ErrorKind::kInvalidArgument, "", "--probe-megabytes",
                 str("at most ", most / 1'000'000, ", a quarter of the machine's memory"),
                 str("it is ", options.probe_megabytes)};
  }
  return open_limits(device, options.threads, static_cast<size_t>(bytes), progress);
}

namespace bench_verb {
namespace {

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts(1);
  for (const char c : list) {
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

Result<std::vector<int64_t>> parse_tokens(const std::string& list) {
  constexpr int64_t kMost = 1 << 16;
  std::vector<int64_t> tokens;
  for (const std::string& part : split(list)) {
    int64_t count = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), count);
    if (error != std::errc() || end != part.data() + part.size() || count < 1 || count > kMost) {
      return Error{ErrorKind::kInvalidArgument, "", "--tokens",
                   str("numbers from 1 to ", kMost, ", such as 1,16,256"), "it has " + quote(part)};
    }
    tokens.push_back(count);
  }
  return tokens;
}

// Parsed options. Parse all of them before the first measurement.
struct BenchRequest {
  std::vector<bench::LayerShape> shapes;
  std::vector<Scheme> schemes;
  std::vector<int64_t> tokens;
  DeviceName device;
  bool bf16_activations = false;
  std::optional<Anchors> anchors;
};

Result<BenchRequest> parse(const BenchOptions& options) {
  BenchRequest requested;
  for (const std::string& text : split(options.shapes)) {
    MORACLE_TRY(bench::LayerShape shape, bench::find_shape(text));
    requested.shapes.push_back(std::move(shape));
  }
  for (const std::string& text : split(options.schemes)) {
    MORACLE_TRY(const Scheme scheme, parse_scheme(text));
    requested.schemes.push_back(scheme);
  }
  MORACLE_TRY(requested.tokens, parse_tokens(options.tokens));
  MORACLE_TRY(requested.device, parse_device(options.device));
  MORACLE_TRY(requested.bf16_activations, rounds_to_bf16(options));
  if (!options.anchors.empty()) {
    MORACLE_TRY(requested.anchors, Anchors::read(options.anchors));
  }
  if (options.backend.find('=') != options.backend.npos) {
    return Error{ErrorKind::kInvalidArgument, "", "--backend", "auto or a backend's name",
                 "it is " + quote(options.backend)};
  }
  MORACLE_CHECK(BackendMap::parse(options.backend));
  if (options.all_backends && options.backend != "auto") {
    return Error{ErrorKind::kInvalidArgument, "", "--all-backends", "a command without --backend",
                 "both are given"};
  }
  return requested;
}

// First reason against a backend.
std::string reason_of(const Verdict& verdict) {
  const Reason& reason = verdict.reasons.front();
  return str(reason.rule, ": needs ", reason.need, "; ", reason.have);
}

class Bench {
 public:
  Bench(const BenchOptions& options, BenchRequest requested, std::vector<TunedLayer> tuned)
      : options_(options), requested_(std::move(requested)) {
    machine_.tuned = std::move(tuned);
    report_.activations = options.activations;
    report_.zipf = options.zipf;
  }

  /// Selects all backends before the first measurement. Errors: nothing serves any request.
  Status choose() {
    for (const bench::LayerShape& shape : requested_.shapes) {
      for (const Scheme& scheme : requested_.schemes) choose(shape, scheme);
    }
    return jobs_.empty() ? first_refusal_ : Status();
  }

  /// Measures all cells. After an error, the report keeps the finished cells.
  Status run(LimitsProbe& probe, const std::shared_ptr<Device>& device) {
    ProgressBar bar("measuring");
    MORACLE_TRY(report_.limits, probe.measure(bar.callback()));
    for (const Job& job : jobs_) MORACLE_CHECK(run(job, probe, device, bar.callback()));
    return report_.rows.empty() ? first_refusal_ : Status();
  }
  const BenchReport& report() const { return report_; }

 private:
  struct Job {
    Selection selection;
    bool chosen = false;
  };

  void choose(const bench::LayerShape& shape, const Scheme& scheme) {
    Request request;
    request.layer = bench::layer_of(shape, scheme);
    request.max_num_tokens = *std::max_element(requested_.tokens.begin(), requested_.tokens.end());
    request.bf16_activations = requested_.bf16_activations;
    request.platform = requested_.device.platform;
    if (requested_.device.platform != Platform::kCpu)
      request.device_index = requested_.device.index;
    const Selection oracle = select(request, machine_);
    const Backend* const chosen = oracle.plan ? oracle.plan->backend : nullptr;
    request.backend = options_.backend;
    const Selection asked = select(request, machine_);
    if (!asked.plan && first_refusal_.ok()) first_refusal_ = asked.chosen().error();
    for (const Verdict& verdict : asked.considered) {
      if (options_.all_backends) {
        request.backend = name(*verdict.backend);
      } else if (asked.plan
                     ? verdict.backend != asked.plan->backend
                     : options_.backend != "auto" && options_.backend != name(*verdict.backend)) {
        continue;
      }
      if (verdict.accepted())
        jobs_.push_back({select(request, machine_), verdict.backend == chosen});
      else
        refuse(request.layer, *verdict.backend, reason_of(verdict));
    }
  }

  Status run(const Job& job, LimitsProbe& probe, const std::shared_ptr<Device>& device,
             const Progress& progress) {
    const Backend& backend = *job.selection.plan->backend;
    const LayerSpec& layer = job.selection.request.layer;
    auto ring = bench::LayerRing::make(job.selection, device, probe.buffer_bytes(),
                                       bench_memory(probe), progress);
    if (!ring && ring.error().kind == ErrorKind::kOutOfMemory) {
      if (first_refusal_.ok()) first_refusal_ = ring.error();
      refuse(layer, backend, ring.error().to_string());
      return {};
    }
    if (!ring) return ring.error();
    for (const int64_t tokens : requested_.tokens) {
      auto measured =
          bench::measure(*ring, tokens, {.seconds = options_.seconds, .zipf = options_.zipf}, probe,
                         report_.limits.peaks, progress);
      if (!measured && measured.error().kind == ErrorKind::kOutOfMemory) {
        refuse(layer, backend, str(tokens, " tokens: ", measured.error().to_string()));
        continue;
      }
      if (!measured) return measured.error();
      BenchRow& row = report_.rows.emplace_back();
      row = {layer.name,
             name(layer.scheme),
             std::string(name(backend)),
             job.chosen,
             *std::move(measured),
             {},
             job.selection.plan->matrices};
      const AnchorCell* const cell =
          requested_.anchors ? requested_.anchors->find(row.shape, row.scheme, tokens) : nullptr;
      if (cell != nullptr) row.anchors = *cell;
    }
    return {};
  }

  void refuse(const LayerSpec& layer, const Backend& backend, std::string reason) {
    report_.refused.push_back(
        {layer.name, name(layer.scheme), std::string(name(backend)), std::move(reason)});
  }

  const BenchOptions& options_;
  const BenchRequest requested_;
  Machine machine_ = Machine::here();
  std::vector<Job> jobs_;
  Status first_refusal_;
  BenchReport report_;
};

int lacks(const CLI::Option& option, std::string_view need) {
  return fail(
      {ErrorKind::kInvalidArgument, "", option.get_name(), std::string(need), "neither is given"});
}

int run(const BenchOptions& options) {
  if (!options.without.empty()) {
    CLI_TRY(const Isa without, parse_isa(options.without));
    mask_isa(without);
  }
  if (options.ranks.given() && options.ranks.by_load()) {
    return fail({ErrorKind::kInvalidArgument, "", "--placement", "linear or round-robin",
                 "it is " + quote(options.ranks.placement) +
                     ": the random weights of bench have no measured load"});
  }
  if (options.ranks.given() && !options.load.empty()) {
    return fail({ErrorKind::kInvalidArgument, "", "--parallel", "a command without --load",
                 "loading is timed in one process"});
  }
  if (options.ranks.given() && options.zipf > 0) {
    return fail({ErrorKind::kInvalidArgument, "", "--parallel", "a command without --zipf",
                 "skewed routing is timed in one process"});
  }
  if (!options.load.empty()) return run_load_bench(options);
  if (!options.model_shape.empty() || !options.model.empty()) return run_model_bench(options);
  CLI_TRY(BenchRequest requested, parse(options));
  if (options.ranks.given())
    return run_rank_bench(options, {requested.shapes, requested.schemes, requested.tokens});
  CLI_TRY(const std::shared_ptr<Device> device,
          open_device(requested.device, device_options(requested.device, options.threads,
                                                       options.pin, options.json)));
  CLI_TRY(std::vector<TunedLayer> tuned,
          read_tuning(options.cache, options.threads, requested.device));
  Bench bench(options, std::move(requested), std::move(tuned));
  if (const Status served = bench.choose(); !served) return fail(served.error());
  ProgressBar preparing("preparing");
  CLI_TRY(const std::unique_ptr<LimitsProbe> probe,
          make_probe(options, device, preparing.callback()));
  const Status done = bench.run(*probe, device);
  if (!bench.report().rows.empty()) {
    if (options.json)
      print(to_json(bench.report()));
    else
      std::cout << describe(bench.report());
  }
  return done ? kDone : fail(done.error());
}

}  // namespace
}  // namespace bench_verb

void add_bench(CLI::App& app, Work& chosen) {
  add_verb(
      app, "bench",
      "Time layers, a checkpoint, or a model of a published shape, and compare with the machine's "
      "limits",
      [](CLI::App& verb) -> Work {
        auto options = std::make_shared<BenchOptions>();
        std::vector<std::string> names;
        for (const bench::LayerShape& shape : bench::known_shapes()) names.push_back(shape.name);
        verb.add_option("--shape", options->shapes,
                        join(names) +
                            ", or experts x hidden x intermediate x top_k; "
                            "separate several with commas")
            ->capture_default_str();
        verb.add_option("--scheme", options->schemes,
                        "Scheme, such as int4-w4a16-g128; separate several with commas")
            ->capture_default_str();
        verb.add_option("--tokens", options->tokens,
                        "Tokens per call of a layer; separate several with commas")
            ->capture_default_str();
        verb.add_option("--backend", options->backend,
                        "auto, or a backend's name (moracle explain lists them)")
            ->capture_default_str();
        verb.add_flag("--all-backends", options->all_backends,
                      "Time every backend that accepts the layer; > marks the oracle's choice");
        CLI::Option* const model = verb.add_option(
            "--model-shape", options->model_shape,
            "Time decode steps of a whole model of this shape instead of single layers");
        CLI::Option* const checkpoint =
            verb.add_option("--model", options->model,
                            "Time decode steps of this checkpoint, a folder or a .gguf file");
        checkpoint->excludes(model);
        CLI::Option* const zipf = verb.add_option("--zipf", options->zipf,
                                                  "Skewed routing: the r-th most popular expert is "
                                                  "drawn with weight 1 / r^S; 0: uniform");
        zipf->check(number(0, 10))->excludes(model)->capture_default_str();
        verb.add_option(
                "--anchors", options->anchors,
                "JSON file with times of other libraries' kernels on this GPU, to show beside "
                "Moracle's")
            ->excludes(model)
            ->excludes(zipf);
        // Options of whole models, whichever of the two is given.
        std::vector<CLI::Option*> of_models{
            verb.add_option("--kv-cache", options->kv_cache, kKvCacheHelp)->capture_default_str(),
            verb.add_option("--context", options->context, "Tokens in the cache of each sequence")
                ->transform(whole(int64_t{1}, int64_t{1} << 20))
                ->capture_default_str(),
            verb.add_option("--batch", options->batches,
                            "Sequences per decode step; separate several with commas")
                ->delimiter(',')
                ->transform(whole())
                ->capture_default_str(),
            verb.add_option("--prompt", options->prompt,
                            "Also time a prompt of this many tokens per sequence; 0: no prompt")
                ->transform(whole())
                ->capture_default_str(),
            verb.add_option("--speculate", options->speculate,
                            "Also time one sequence with this many drafts per step, accepted at "
                            "random; 0: off")
                ->transform(whole(int64_t{0}, Speculation::kMaxDrafts))
                ->capture_default_str(),
            verb.add_option("--acceptance", options->acceptance,
                            "With --speculate: probability that a draft is accepted")
                ->check(number(0, 1))
                ->capture_default_str(),
            verb.add_flag("--no-graphs", options->no_graphs, kNoGraphsHelp),
            verb.add_option("--gpu-memory", options->gpu_memory, kGpuMemoryHelp)
                ->expected(0, 1)
                ->transform(size_or_free("20GB")),
            verb.add_option("--cpu-memory", options->cpu_memory, kCpuMemoryHelp)
                ->expected(0, 1)
                ->transform(size_or_free("64GB")),
            verb.add_option(
                "--routing-trace", options->routing_trace,
                "Experts that decode steps choose instead of the router's: a JSON file, "
                "or generated, for choices as persistent as published ones")};
        verb.add_option("--output-scheme", options->output_scheme,
                        "With --model-shape: scheme of the output layer")
            ->needs(model)
            ->capture_default_str();
        verb.add_option("--layers", options->layers,
                        "With --model-shape: number of layers to build")
            ->needs(model)
            ->transform(whole(int64_t{1}, int64_t{1} << 10))
            ->capture_default_str();
        options->ranks.add_to(verb);
        verb.add_option("--exchange-bytes", options->exchange_bytes,
                        "With --parallel: time the exchange of this many bytes per rank instead of "
                        "layers; separate several with commas")
            ->delimiter(',')
            ->transform(whole());
        CLI::Option* const load = verb.add_option(
            "--load", options->load,
            "Time loading the checkpoint in this folder, and compare with only reading "
            "its files");
        load->excludes(zipf)->excludes(checkpoint);
        verb.add_flag("--cold", options->cold,
                      "With --load: read from the disk; first drop the files from the page cache")
            ->needs(load);
        CLI::Option* const quantization =
            verb.add_option("--quantization", options->quantization, kQuantizationHelp);
        verb.add_option("--activations", options->activations, kActivationsHelp);
        CLI::Option* const weights =
            verb.add_option("--weights", options->weights, kWeightsHelp)->capture_default_str();
        verb.add_option("--seconds", options->seconds, "Seconds to spend on each row of the table")
            ->check(number(0.001, 3600))
            ->capture_default_str();
        verb.add_option("--device", options->device, "cpu, cuda[:n] or opencl[:n]")
            ->capture_default_str();
        verb.add_option("--threads", options->threads,
                        "CPU threads; 0: all CPUs that the process may use")
            ->transform(whole(0, kMaxThreads))
            ->capture_default_str();
        verb.add_flag("--pin", options->pin, kPinHelp);
        verb.add_option(
                "--probe-megabytes", options->probe_megabytes,
                "Size of the buffer for measuring bandwidth, in MB; 0: 1 GiB, or four times "
                "the CPU cache if that is larger")
            ->transform(whole(int64_t{0}, int64_t{1} << 20))
            ->capture_default_str();
        verb.add_option("--without", options->without, kWithoutHelp);
        verb.add_option("--cache", options->cache, kCacheHelp);
        verb.add_flag("--json", options->json, "Print one JSON document on stdout");
        const auto given = [](const CLI::Option* option) { return option->count() > 0; };
        return [=] {
          for (const CLI::Option* option : of_models) {
            if (given(option) && !given(model) && !given(checkpoint))
              return bench_verb::lacks(*option, "--model or --model-shape");
          }
          if (given(quantization) && !given(load) && !given(checkpoint))
            return bench_verb::lacks(*quantization, "--load or --model");
          if (given(weights) && !given(load) && !given(checkpoint))
            return bench_verb::lacks(*weights,
                                     "--load or --model, or for layers a --scheme with folded "
                                     "weights, such as fp8-w8a8-g128-token");
          return bench_verb::run(*options);
        };
      },
      chosen);
}

}  // namespace moracle::cli
