// moracle check: runs the conformance cases on this machine.
#include <iostream>
#include <map>

#include "base/printable.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "caches/kernel_cache.h"
#include "command.h"
#include "conformance/conformance.h"
#include "numbers.h"
#include "options/model_options.h"
#include "oracle/backend.h"
#include "oracle/machine/masked_isa.h"
#include "terminal.h"

namespace moracle::cli {
namespace check_verb {
namespace {

using conformance::Case;
using conformance::Outcome;

struct Options {
  std::string backend, scheme, shape, spread, variant, device, without;
  std::optional<int64_t> tokens;
  bool json = false;
  int threads = 0;
};

Status narrow(std::vector<Case>& cases, const Options& options) {
  auto keep = [&](auto&& holds) { std::erase_if(cases, [&](const Case& c) { return !holds(c); }); };
  if (!options.backend.empty()) {
    std::vector<std::string_view> names;
    for (const Backend& backend : backends()) names.push_back(backend.name);
    if (std::find(names.begin(), names.end(), options.backend) == names.end()) {
      return Error{ErrorKind::kInvalidArgument, "", "--backend", "one of " + join(names),
                   quote(options.backend) + " is unknown"};
    }
    keep([&](const Case& c) { return c.backend == options.backend; });
    if (cases.empty()) {
      return Error{ErrorKind::kUnsupported, "", "--backend", "a backend of this build",
                   "this build does not contain " + quote(options.backend)};
    }
  }
  if (!options.scheme.empty()) {
    Result<Scheme> scheme = parse_scheme(options.scheme);
    if (!scheme) return scheme.error();
    keep([&](const Case& c) { return c.scheme == *scheme; });
  }
  if (!options.shape.empty()) {
    Result<conformance::Shape> shape = conformance::parse_shape(options.shape);
    if (!shape) return shape.error();
    keep([&](const Case& c) { return c.shape == *shape; });
  }
  if (options.tokens) keep([&](const Case& c) { return c.num_tokens == *options.tokens; });
  if (!options.spread.empty())
    keep([&](const Case& c) { return name(c.spread) == options.spread; });
  if (!options.variant.empty()) {
    if (conformance::find_variant(options.variant) == nullptr) {
      std::vector<std::string_view> names;
      for (const conformance::Variant& variant : conformance::variants())
        names.push_back(variant.name);
      return Error{ErrorKind::kInvalidArgument, "", "--variant", "one of " + join(names),
                   quote(options.variant) + " is unknown"};
    }
    keep([&](const Case& c) { return c.variant == options.variant; });
  }
  if (!cases.empty()) return {};
  return Error{ErrorKind::kInvalidArgument, "", "check", "at least one case",
               "no case matches all given options"};
}

Platform platform_of(const Case& c) {
  for (const Backend& backend : backends()) {
    if (backend.name == c.backend) return backend.platform;
  }
  return Platform::kCpu;
}

// Device of the cases: the requested one, or that of the requested backend.
Result<std::shared_ptr<Device>> device_for(const Options& options) {
  std::string device = options.device.empty() ? "cpu" : options.device;
  for (const Backend& backend : backends()) {
    if (options.device.empty() && backend.name == options.backend) device = name(backend.platform);
  }
  MORACLE_TRY(const DeviceName named, parse_device(device));
  return open_device(named, device_options(named, options.threads, false, options.json));
}

struct Count {
  int passed = 0, refused = 0, failed = 0;
  double worst = 0;
  std::string reason;  // reason of the first rejection
};

int run(const Options& options) {
  if (!options.without.empty()) {
    CLI_TRY(const Isa without, parse_isa(options.without));
    mask_isa(without);
  }
  std::vector<Case> cases = conformance::cases();
  if (Status narrowed = narrow(cases, options); !narrowed) return fail(narrowed.error());
  CLI_TRY(const std::shared_ptr<Device> device, device_for(options));
  if (options.backend.empty()) {
    std::erase_if(cases, [&](const Case& c) { return platform_of(c) != device->platform(); });
  }
  // End each message with the command that repeats the case.
  const std::string without = options.without.empty() ? "" : " --without " + options.without;
  ProgressBar bar("checking");
  std::map<std::pair<std::string, std::string>, Count> counts;
  std::vector<std::string> failures;
  int passed = 0, refused = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (!bar.check(static_cast<int64_t>(i), static_cast<int64_t>(cases.size()))) {
      bar.clear();
      return fail({ErrorKind::kCancelled, "", "check", "",
                   str("stopped after ", i, " of ", cases.size(), " cases, ", failures.size(),
                       failures.size() == 1 ? " failure" : " failures", " so far")});
    }
    const Outcome outcome = conformance::run(cases[i], device);
    Count& count = counts[{std::string(cases[i].backend), name(cases[i].scheme)}];
    count.worst = std::max(count.worst, outcome.worst);
    if (outcome.kind == Outcome::kPassed) ++count.passed, ++passed;
    if (outcome.kind == Outcome::kRefused)
      ++count.refused, ++refused, count.reason = outcome.message;
    if (outcome.kind == Outcome::kFailed)
      ++count.failed, failures.push_back(outcome.message + without);
  }
  bar.clear();
  if (options.json) {
    Json rows = Json::array();
    for (const auto& [key, count] : counts) {
      rows.push_back({{"backend", key.first},
                      {"scheme", key.second},
                      {"passed", count.passed},
                      {"refused", count.refused},
                      {"failed", count.failed},
                      {"worst_share_of_bound", count.worst}});
    }
    print({{"rows", rows}, {"passed", passed}, {"refused", refused}, {"failures", failures}});
  } else {
    Table table;
    table.row({"backend", "scheme", "passed", "failed", "refused", "worst / bound"});
    for (const auto& [key, count] : counts) {
      table.row({key.first, key.second, std::to_string(count.passed), std::to_string(count.failed),
                 std::to_string(count.refused),
                 count.passed + count.failed > 0 ? rounded(count.worst, 3) : ""});
    }
    std::cout << table.text({2, 3, 4, 5});
    for (const std::string& failure : failures) std::cout << "\n  " << failure << "\n";
    std::cout << "\n"
              << passed << " passed, " << failures.size() << " failed, " << refused
              << " refused by the oracle\n";
  }
  return failures.empty() ? kDone : kFailed;
}

}  // namespace
}  // namespace check_verb

void add_check(CLI::App& app, Work& chosen) {
  add_verb(
      app, "check", "Test every backend of this machine against double precision",
      [](CLI::App& verb) -> Work {
        auto options = std::make_shared<check_verb::Options>();
        verb.add_option("--backend", options->backend, "Only this backend");
        verb.add_option("--scheme", options->scheme, "Only this scheme, such as int4-w4a16-g128");
        verb.add_option("--shape", options->shape,
                        "Only this shape: experts x hidden x intermediate x top_k");
        verb.add_option("--tokens", options->tokens, "Only this number of tokens")
            ->transform(whole());
        verb.add_option("--spread", options->spread, "Only this routing")
            ->check(CLI::IsMember({"uniform", "one-expert", "holes"}));
        verb.add_option("--variant", options->variant,
                        "Only this variant: plain, bias, gelu, ep-2, batched, lora, reload, …");
        verb.add_option("--device", options->device,
                        "cpu, cuda[:n] or opencl[:n]; default: the device of --backend, else cpu");
        verb.add_option("--without", options->without, kWithoutHelp);
        verb.add_option("--threads", options->threads,
                        "CPU threads; 0: all CPUs that the process may use")
            ->transform(whole(0, kMaxThreads));
        verb.add_flag("--json", options->json, "Print one JSON document on stdout");
        return [options] { return check_verb::run(*options); };
      },
      chosen);
}

}  // namespace moracle::cli
