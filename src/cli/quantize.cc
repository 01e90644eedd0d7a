// moracle quantize: quantizes a plain checkpoint to another folder.
#include <iostream>

#include "base/text.h"
#include "command.h"
#include "model_options.h"
#include "numbers.h"
#include "terminal.h"

namespace moracle::cli {
namespace quantize_verb {
namespace {

struct Options {
  std::string folder, scheme, output;
  QuantizeOptions writing;
  bool json = false;
};

std::vector<std::string> scheme_names(const QuantizeReport& report) {
  std::vector<std::string> names;
  for (const Scheme& scheme : report.schemes) names.push_back(name(scheme));
  return names;
}

Json to_json(const Options& options, const QuantizeReport& report) {
  return {{"folder", options.output},
          {"format", options.writing.format},
          {"scheme", join(scheme_names(report))},
          {"files", report.files},
          {"tensors_quantized", report.num_quantized},
          {"tensors_left", report.num_left},
          {"bytes_before", report.bytes_before},
          {"bytes_after", report.bytes_after}};
}

void show(const Options& options, const QuantizeReport& report) {
  std::cout << bold(options.output) << "\n";
  Table table;
  table.row({"scheme", join(scheme_names(report))});
  table.row({"format", options.writing.format});
  table.row(
      {"tensors", str(report.num_quantized, " quantized, ", report.num_left, " copied unchanged")});
  table.row({"size", megabytes(report.bytes_after) + ", was " + megabytes(report.bytes_before)});
  table.row({"files", std::to_string(report.files.size())});
  std::cout << table.text();
}

int run(Options options) {
  CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(options.folder));
  CLI_TRY(const QuantizationMap map, QuantizationMap::parse(options.scheme));
  ProgressBar bar("quantizing");
  options.writing.progress = bar.callback();
  const Result<QuantizeReport> report = quantize(checkpoint, map, options.output, options.writing);
  bar.clear();
  if (!report) return fail(report.error());
  if (options.json)
    print(to_json(options, *report));
  else
    show(options, *report);
  return kDone;
}

// Check before CLI::AsSizeValue, which accepts signs and too many digits.
CLI::Validator size_in_bytes() {
  const auto check = [](std::string& text) -> std::string {
    constexpr size_t kMostDigits = 18;
    const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    if (digits > 0 && digits <= kMostDigits) return {};
    return "needs a whole number of bytes, such as 5GB; it is " + quote(text);
  };
  return CLI::Validator(check, "");
}

}  // namespace
}  // namespace quantize_verb

void add_quantize(CLI::App& app, Work& chosen) {
  add_verb(
      app, "quantize", "Quantize a plain checkpoint and write it to a new folder",
      [](CLI::App& verb) -> Work {
        auto options = std::make_shared<quantize_verb::Options>();
        verb.add_option("MODEL", options->folder, "Folder of the checkpoint")->required();
        verb.add_option("--scheme", options->scheme,
                        "int8-per-channel, int8-per-channel-weight-only, fp8-per-tensor, "
                        "fp8-per-channel, fp8-per-block, mxfp8, or pattern=scheme,pattern=none")
            ->required();
        verb.add_option("-o,--output", options->output, "Folder to create")->required();
        verb.add_option(
                "--format", options->writing.format,
                "compressed-tensors, fp8 (blocks as DeepSeek stores them) or modelopt (mxfp8)")
            ->capture_default_str();
        verb.add_option("--max-shard-size", options->writing.max_shard_bytes,
                        "Maximum size of the tensors in one file, such as 5GB")
            ->transform(CLI::AsSizeValue(true))
            ->transform(quantize_verb::size_in_bytes())
            ->check(whole<int64_t>(1))
            ->capture_default_str();
        verb.add_flag("--json", options->json, "Print one JSON document on stdout");
        return [options] { return quantize_verb::run(*options); };
      },
      chosen);
}

}  // namespace moracle::cli
