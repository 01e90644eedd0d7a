// moracle bench: what layers of published shapes take here, beside the machine's limits.
#include "bench.h"

#include <algorithm>
#include <charconv>
#include <iostream>

#include "base/text.h"
#include "base/try.h"
#include "terminal.h"

namespace moracle::cli {

int64_t bench_memory(const cpu::LimitsProbe& probe) {
  return Machine::here().cpu.memory_bytes / 2 - probe.buffer_bytes();
}

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
                   str("numbers from 1 to ", kMost, ", such as 1,16,256"),
                   str("it holds '", part, "'")};
    }
    tokens.push_back(count);
  }
  return tokens;
}

// What is to be measured, parsed before anything is.
struct Wanted {
  std::vector<bench::LayerShape> shapes;
  std::vector<Scheme> schemes;
  std::vector<int64_t> tokens;
  DeviceName device;
};

Result<Wanted> parse(const BenchOptions& options) {
  Wanted wanted;
  for (const std::string& text : split(options.shapes)) {
    MORACLE_TRY(bench::LayerShape shape, bench::find_shape(text));
    wanted.shapes.push_back(std::move(shape));
  }
  for (const std::string& text : split(options.schemes)) {
    MORACLE_TRY(const Scheme scheme, parse_scheme(text));
    wanted.schemes.push_back(scheme);
  }
  MORACLE_TRY(wanted.tokens, parse_tokens(options.tokens));
  MORACLE_TRY(wanted.device, parse_device(options.device));
  if (options.backend.find('=') != options.backend.npos) {
    return Error{ErrorKind::kInvalidArgument, "", "--backend", "auto or a backend's name",
                 str("it is '", options.backend, "'")};
  }
  MORACLE_CHECK(BackendMap::parse(options.backend));
  if (options.all_backends && options.backend != "auto") {
    return Error{ErrorKind::kInvalidArgument, "", "--all-backends", "no --backend beside it",
                 "both are given"};
  }
  return wanted;
}

// The first reason of a row that does not serve.
std::string reason_of(const Verdict& verdict) {
  const Reason& reason = verdict.reasons.front();
  return str(reason.rule, ": needs ", reason.need, "; ", reason.have);
}

class Bench {
 public:
  Bench(const BenchOptions& options, Wanted wanted, cpu::LimitsProbe probe,
        std::shared_ptr<Device> device)
      : options_(options),
        wanted_(std::move(wanted)),
        probe_(std::move(probe)),
        device_(std::move(device)) {
    report_.limits = probe_.measure();
  }

  Status run() {
    for (const bench::LayerShape& shape : wanted_.shapes) {
      for (const Scheme& scheme : wanted_.schemes) MORACLE_CHECK(run(shape, scheme));
    }
    bar_.clear();
    return {};
  }
  const BenchReport& report() const { return report_; }

 private:
  Status run(const bench::LayerShape& shape, const Scheme& scheme) {
    Request request;
    request.layer = bench::layer_of(shape, scheme);
    request.max_num_tokens = *std::max_element(wanted_.tokens.begin(), wanted_.tokens.end());
    request.platform = wanted_.device.platform;
    const Selection oracle = select(request, machine_);
    const std::string chosen(oracle.plan ? oracle.plan->backend->name : "");
    if (!options_.all_backends && (options_.backend != "auto" || !chosen.empty()))
      return run(request, options_.backend == "auto" ? chosen : options_.backend, chosen);
    for (const Verdict& verdict : oracle.considered) {
      if (verdict.accepted())
        MORACLE_CHECK(run(request, std::string(verdict.backend->name), chosen));
      else
        refuse(request, verdict);
    }
    return {};
  }

  Status run(Request request, const std::string& backend, const std::string& chosen) {
    request.backend = backend;
    const Selection selection = select(request, machine_);
    if (!selection.plan) {
      for (const Verdict& verdict : selection.considered) {
        if (verdict.backend->name == backend) refuse(request, verdict);
      }
      return {};
    }
    auto ring = bench::LayerRing::make(selection, device_, probe_.buffer_bytes(),
                                       bench_memory(probe_), bar_.callback());
    if (!ring) return ring.error();
    for (const int64_t tokens : wanted_.tokens) {
      MORACLE_TRY(
          bench::Measurement measured,
          ring->measure(tokens, options_.seconds, probe_, report_.limits.peaks, bar_.callback()));
      report_.rows.push_back({request.layer.name, name(request.layer.scheme), backend,
                              backend == chosen, std::move(measured)});
    }
    return {};
  }

  void refuse(const Request& request, const Verdict& verdict) {
    report_.refused.push_back({request.layer.name, name(request.layer.scheme),
                               std::string(verdict.backend->name), reason_of(verdict)});
  }

  const BenchOptions& options_;
  const Wanted wanted_;
  const Machine machine_ = Machine::here();
  cpu::LimitsProbe probe_;
  std::shared_ptr<Device> device_;
  BenchReport report_;
  ProgressBar bar_{"measuring"};
};

int run(const BenchOptions& options) {
  if (!options.model_shape.empty()) return run_model_bench(options);
  CLI_TRY(Wanted wanted, parse(options));
  CLI_TRY(std::shared_ptr<Device> device, open_device(options.device, options.threads));
  CLI_TRY(cpu::LimitsProbe probe,
          cpu::LimitsProbe::make(options.threads,
                                 static_cast<size_t>(options.probe_megabytes) * 1'000'000));
  Bench bench(options, std::move(wanted), std::move(probe), std::move(device));
  if (const Status done = bench.run(); !done) return fail(done.error());
  const BenchReport& report = bench.report();
  if (options.json)
    print(to_json(report));
  else
    std::cout << describe(report);
  if (!report.rows.empty()) return kDone;
  const BenchRefusal& first = report.refused.front();
  return fail({ErrorKind::kUnsupported, "", str("backend ", first.backend),
               str("to serve ", first.scheme), first.reason});
}

}  // namespace

void add_bench(CLI::App& app, Work& chosen) {
  add_verb(
      app, "bench", "Time layers, or a model, of published shapes beside the machine's limits",
      [](CLI::App& verb) -> Work {
        auto options = std::make_shared<BenchOptions>();
        std::vector<std::string> names;
        for (const bench::LayerShape& shape : bench::known_shapes()) names.push_back(shape.name);
        verb.add_option("--shape", options->shapes,
                        join(names) +
                            ", or experts x hidden x intermediate x top_k; several "
                            "with commas between them")
            ->capture_default_str();
        verb.add_option("--scheme", options->schemes, "Such as int4-w4a16-g128; several likewise")
            ->capture_default_str();
        verb.add_option("--tokens", options->tokens, "Tokens at once; several likewise")
            ->capture_default_str();
        verb.add_option("--backend", options->backend, "auto, or a backend's name (see explain)")
            ->capture_default_str();
        verb.add_flag("--all-backends", options->all_backends,
                      "Every backend that serves; the oracle's choice is marked");
        verb.add_option("--model-shape", options->model_shape,
                        "Decode with a whole model of this shape instead");
        verb.add_option("--layers", options->layers, "Layers of that model")
            ->check(CLI::Range(int64_t{1}, int64_t{1} << 10))
            ->capture_default_str();
        verb.add_option("--context", options->context, "Tokens in its cache")
            ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
            ->capture_default_str();
        verb.add_option("--seconds", options->seconds, "Time for each row")
            ->check(CLI::Range(0.001, 3600.0))
            ->capture_default_str();
        verb.add_option("--device", options->device, "cpu")->capture_default_str();
        verb.add_option("--threads", options->threads, "CPU threads; 0: all that may be used")
            ->check(CLI::Range(0, 4096))
            ->capture_default_str();
        verb.add_option("--probe-megabytes", options->probe_megabytes,
                        "Memory that the bandwidth is measured on; 0: 1 GiB, or four times the "
                        "cache where that is more")
            ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
            ->capture_default_str();
        verb.add_flag("--json", options->json, "One JSON document on stdout");
        return [options] { return run(*options); };
      },
      chosen);
}

}  // namespace moracle::cli
