// moracle quantize: quantizes a plain checkpoint to another folder, or to a GGUF file.
#include <iostream>

#include "base/text.h"
#include "command.h"
#include "numbers.h"
#include "options/model_options.h"
#include "terminal.h"

namespace moracle::cli {
namespace quantize_verb {
namespace {

constexpr std::string_view kGguf = "gguf";  // --format

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

Json to_json(const Options& options, const GgufReport& report) {
  Json types = Json::array(), fallbacks = Json::array();
  for (const GgufReport::Type& type : report.types)
    types.push_back({{"type", name(type.type)},
                     {"tensors", type.num_tensors},
                     {"weights", type.num_weights},
                     {"bytes", type.bytes}});
  for (const GgufReport::Fallback& one : report.fallbacks)
    fallbacks.push_back({{"tensor", one.tensor},
                         {"requested", name(one.requested)},
                         {"written", name(one.written)},
                         {"columns", one.columns}});
  return {{"file", options.output},
          {"format", kGguf},
          {"architecture", report.architecture},
          {"types", types},
          {"fallbacks", fallbacks},
          {"left_out", report.left_out},
          {"bytes_before", report.bytes_before},
          {"bytes_after", report.bytes_after}};
}

void show(const Options& options, const GgufReport& report) {
  std::cout << bold(options.output) << "\n";
  Table table;
  table.row({"format", str("GGUF, ", report.architecture)});
  for (const GgufReport::Type& type : report.types)
    table.row(
        {std::string(name(type.type)), str(type.num_tensors, " tensors, ", megabytes(type.bytes))});
  table.row({"size", megabytes(report.bytes_after) + ", was " + megabytes(report.bytes_before)});
  std::cout << table.text();
  for (const GgufReport::Fallback& one : report.fallbacks)
    std::cout << one.tensor << ": " << name(one.written) << " in place of " << name(one.requested)
              << ", because it has " << one.columns << " columns\n";
  for (const std::string& one : report.left_out) std::cout << "left out: " << one << "\n";
}

template <class Report>
int finish(const Options& options, const Result<Report>& report) {
  if (!report) return fail(report.error());
  if (options.json)
    print(to_json(options, *report));
  else
    show(options, *report);
  return kDone;
}

int run_gguf(const Options& options) {
  if (options.writing.max_shard_bytes != QuantizeOptions().max_shard_bytes) {
    return fail({ErrorKind::kInvalidArgument, "", "max_shard_bytes",
                 "another format than gguf, which is one file", "the format is gguf"});
  }
  CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(options.folder));
  CLI_TRY(const GgufTypes types, GgufTypes::parse(options.scheme));
  ProgressBar bar("quantizing");
  const Result<GgufReport> report = write_gguf(checkpoint, types, options.output, bar.callback());
  bar.clear();
  return finish(options, report);
}

int run(Options options) {
  if (options.writing.format == kGguf) return run_gguf(options);
  CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(options.folder));
  CLI_TRY(const QuantizationMap map, QuantizationMap::parse(options.scheme));
  ProgressBar bar("quantizing");
  options.writing.progress = bar.callback();
  const Result<QuantizeReport> report = quantize(checkpoint, map, options.output, options.writing);
  bar.clear();
  return finish(options, report);
}

}  // namespace
}  // namespace quantize_verb

void add_quantize(CLI::App& app, Work& chosen) {
  add_verb(
      app, "quantize", "Quantize a plain checkpoint and write it to a new folder or GGUF file",
      [](CLI::App& verb) -> Work {
        auto options = std::make_shared<quantize_verb::Options>();
        verb.add_option("MODEL", options->folder, "Folder of the checkpoint")->required();
        verb.add_option("--scheme", options->scheme,
                        "int8-per-channel, int8-per-channel-weight-only, fp8-per-tensor, "
                        "fp8-per-channel, fp8-per-block, mxfp8, or pattern=scheme,pattern=none; "
                        "gguf: q8_0, q4_0, q4_k, q6_k, mxfp4, bf16, f16, f32")
            ->required();
        verb.add_option("-o,--output", options->output,
                        "Folder to create; gguf: a file that ends with .gguf")
            ->required();
        verb.add_option("--format", options->writing.format,
                        "compressed-tensors, fp8 (blocks as DeepSeek stores them), modelopt "
                        "(mxfp8) or gguf "
                        "(one file for llama.cpp)")
            ->capture_default_str();
        verb.add_option("--max-shard-size", options->writing.max_shard_bytes,
                        "Maximum size of the tensors in one file, such as 5GB")
            ->transform(CLI::AsSizeValue(true))
            ->transform(size_in_bytes("5GB"))
            ->check(whole<int64_t>(1))
            ->capture_default_str();
        verb.add_flag("--json", options->json, "Print one JSON document on stdout");
        return [options] { return quantize_verb::run(*options); };
      },
      chosen);
}

}  // namespace moracle::cli
