// moracle bench --model and --model-shape: times a decode step, a prompt, and each part of them.
#include "bench/model.h"

#include <algorithm>
#include <iostream>

#include "base/printable.h"
#include "base/text.h"
#include "base/try.h"
#include "bench_verb/bench.h"
#include "caches/kernel_cache.h"
#include "caches/tuning_cache.h"
#include "options/model_options.h"
#include "terminal.h"

namespace moracle::cli {
namespace {

std::vector<std::string> backends_of(const bench::Decode& decode) {
  std::vector<std::string> names;
  for (const Choice& choice : decode.choices) {
    const std::string name(moracle::name(*choice.selection.plan->backend));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

// Tokens per second, for `tokens` tokens in `us` microseconds.
double per_second(double us, int64_t tokens) {
  return us > 0 ? 1e6 * static_cast<double>(tokens) / us : 0;
}

Json parts_json(const bench::Decode& decode, const std::vector<bench::DecodePart>& parts) {
  const double all = decode.us_all_layers(parts);
  Json json = Json::array();
  for (const bench::DecodePart& part : parts) {
    json.push_back({{"part", part.name},
                    {"us", part.us},
                    {"us_all_layers", decode.us_all_layers(part)},
                    {"share_all_layers", decode.us_all_layers(part) / all}});
  }
  return json;
}

std::string parts_text(const bench::Decode& decode, const std::vector<bench::DecodePart>& parts) {
  const double all = decode.us_all_layers(parts);
  Table table;
  table.row({"part", "µs", str("µs, all ", decode.all_layers, " layers"), "share"});
  for (const bench::DecodePart& part : parts) {
    const double us = decode.us_all_layers(part);
    table.row({part.name, rounded(part.us), rounded(us, 0), rounded(us / all * 100) + " %"});
  }
  return table.text({1, 2, 3});
}

Json document(const bench::Speculated& speculated) {
  return {{"drafts", speculated.options.drafts},
          {"acceptance", speculated.options.acceptance},
          {"us_plain", speculated.us_plain},
          {"us_verify", speculated.us_verify},
          {"us_batch", speculated.us_batch},
          {"us_per_token", speculated.us_fixed},
          {"us_per_token_adaptive", speculated.us_adaptive},
          {"tokens", speculated.tokens},
          {"last_draft", speculated.last_draft}};
}

std::string to_text(const bench::Speculated& speculated) {
  const auto times = [&](double us) { return rounded(speculated.us_plain / us, 2) + " times"; };
  const std::string sizes = str(1 + speculated.options.drafts);
  return str("\n  speculation with ", speculated.options.drafts, " drafts, ",
             rounded(100 * speculated.options.acceptance, 0), " % accepted\n  a step of ", sizes,
             " tokens takes ", rounded(speculated.us_verify / 1e3, 2), " ms, of ", sizes,
             " sequences ", rounded(speculated.us_batch / 1e3, 2), " ms, of one token ",
             rounded(speculated.us_plain / 1e3, 2), " ms\n  one sequence decodes ",
             times(speculated.us_fixed), " as fast, ", times(speculated.us_adaptive),
             " with as many drafts as gain; the last draft was before token ",
             speculated.last_draft, " of ", speculated.tokens, "\n");
}

Json document(const bench::Decode& decode) {
  const double all = decode.us_all_layers();
  Json json = {{"batch", decode.batch},
               {"steps", decode.steps},
               {"num_experts", decode.num_experts},
               {"experts_touched", decode.experts_touched},
               {"us_median", decode.us_median},
               {"us_min", decode.us_min},
               {"tokens_per_second", per_second(decode.us_median, decode.batch)},
               {"us_all_layers", all},
               {"tokens_per_second_all_layers", per_second(all, decode.batch)},
               {"parts", parts_json(decode, decode.parts)}};
  if (decode.us_replayed > 0) {
    const double replayed = decode.us_all_layers(decode.us_replayed);
    json["us_replayed"] = decode.us_replayed;
    json["us_replayed_all_layers"] = replayed;
    json["tokens_per_second_replayed_all_layers"] = per_second(replayed, decode.batch);
  }
  if (decode.speculated) json["speculation"] = document(*decode.speculated);
  if (decode.num_slots >= 0) {
    json["experts"] = {{"num_slots", decode.num_slots},
                       {"hits", decode.placed.hits},
                       {"misses", decode.placed.misses},
                       {"moves", decode.placed.moves},
                       {"bytes_moved", decode.placed.bytes_moved},
                       {"hits_of_devices", decode.placed.hits_of_devices},
                       {"steps_us", decode.placed.steps_us},
                       {"host_waits_us", decode.placed.host_waits_us},
                       {"predicted", nullptr}};
    if (decode.predicted) {
      json["experts"]["predicted"] = {{"hit_rate", decode.predicted->hit_rate},
                                      {"us", decode.predicted->us}};
    }
  }
  if (decode.prompt_tokens > 0) {
    json["prompt_tokens"] = decode.prompt_tokens;
    json["us_prompt"] = decode.us_prompt;
    const double us_all = decode.us_all_layers(decode.prompt_parts);
    json["prompt_tokens_per_second"] = per_second(decode.us_prompt, decode.prompt_tokens);
    json["prompt_tokens_per_second_all_layers"] = per_second(us_all, decode.prompt_tokens);
    json["prompt_parts"] = parts_json(decode, decode.prompt_parts);
  }
  return json;
}

// JSON of the shared values, and of the first batch's values.
Json document(const BenchOptions& options, const Limits& limits,
              const std::vector<bench::Decode>& decodes) {
  const bench::Decode& first = decodes.front();
  Json json = {{"limits", to_json(limits)},         {"device", options.device},
               {"layers", first.num_layers},        {"all_layers", first.all_layers},
               {"context", first.context},          {"kv_cache", kv_cache_name(first.cache_dtype)},
               {"threads", limits.threads},         {"backends", backends_of(first)},
               {"weight_bytes", first.weight_bytes}};
  if (!options.model.empty()) {
    json["model"] = options.model;
  } else {
    json["model_shape"] = options.model_shape;
    json["scheme"] = options.schemes;
    json["output_scheme"] = options.output_scheme;
  }
  if (!options.activations.empty()) json["activations"] = options.activations;
  if (options.weights != "packed") json["weights"] = options.weights;
  if (options.ranks.given()) json["parallel"] = options.ranks.parallel;
  json.update(document(first));
  for (const bench::Decode& decode : decodes) json["batches"].push_back(document(decode));
  return json;
}

std::string to_text(const bench::Decode& decode) {
  const double all = decode.us_all_layers();
  std::string text = str(
      parts_text(decode, decode.parts), "\n  ", rounded(per_second(decode.us_median, decode.batch)),
      " tokens per second with ", decode.num_layers, " layers (", rounded(decode.us_median / 1e3),
      " ms per step, median of ", decode.steps, "); ", rounded(per_second(all, decode.batch)),
      " estimated for all ", decode.all_layers, "\n  one step uses ", decode.experts_touched,
      " of ", decode.num_experts, " experts\n");
  if (decode.us_replayed > 0) {
    const double replayed = decode.us_all_layers(decode.us_replayed);
    text += str("  replayed as a graph: ", rounded(per_second(decode.us_replayed, decode.batch)),
                " tokens per second (", rounded(decode.us_replayed / 1e3, 3), " ms per step); ",
                rounded(per_second(replayed, decode.batch)), " estimated for all ",
                decode.all_layers, "\n");
  }
  if (const int64_t choices = decode.placed.hits + decode.placed.misses; choices > 0) {
    const double share = static_cast<double>(decode.placed.hits) / static_cast<double>(choices);
    text +=
        str("  ", decode.num_slots, " of ", decode.num_experts,
            " experts of each layer in slots: ", rounded(share * 100, 1), " % of the choices, ",
            decode.placed.moves, " moves of together ", megabytes(decode.placed.bytes_moved), "\n");
    if (decode.placed.reads > 0)
      text += str("  ", decode.placed.reads, " experts read from files, ",
                  megabytes(decode.placed.bytes_read), "\n");
  }
  if (decode.predicted) {
    text += str("  the simulator, from the parts above and costs measured at loading: ",
                rounded(decode.predicted->hit_rate * 100, 1), " % of the choices, ",
                rounded(per_second(decode.predicted->us, 1)), " tokens per second\n");
  }
  if (decode.prompt_tokens > 0) {
    const double us_all = decode.us_all_layers(decode.prompt_parts);
    text +=
        str("\n  prompts with ", decode.prompt_tokens, " tokens in total\n\n",
            parts_text(decode, decode.prompt_parts), "\n  ",
            rounded(per_second(decode.us_prompt, decode.prompt_tokens)), " tokens per second with ",
            decode.num_layers, " layers; ", rounded(per_second(us_all, decode.prompt_tokens)),
            " estimated for all ", decode.all_layers, "\n");
  }
  return text;
}

std::string to_text(const BenchOptions& options, const Limits& limits,
                    const std::vector<bench::Decode>& decodes) {
  const bench::Decode& first = decodes.front();
  std::string text = str(
      describe(limits), "  ",
      options.model.empty()
          ? str(options.model_shape, ", ", options.schemes, " (output ", options.output_scheme, ")")
          : printable(options.model),
      ", ", first.num_layers, " of ", first.all_layers, " layers, ", first.context,
      " tokens in each cache (", kv_cache_name(first.cache_dtype), "), ",
      options.activations.empty() ? "" : options.activations + " activations, ",
      options.weights == "packed" ? "" : options.weights + " weights, ", "on ",
      join(backends_of(first)), "\n",
      options.ranks.given() ? "  " + options.ranks.parallel +
                                  "; sequences and bytes are those "
                                  "of one rank\n"
                            : "");
  for (const bench::Decode& decode : decodes) {
    text += decodes.size() > 1 ? str("\n  batch of ", decode.batch,
                                     decode.batch == 1 ? " sequence" : " sequences", "\n\n")
                               : "\n";
    text += to_text(decode);
    if (decode.speculated) text += to_text(*decode.speculated);
  }
  return text;
}

// Of the checkpoint, or of random weights.
Result<std::vector<bench::Decode>> decode(const BenchOptions& options, int64_t most_bytes,
                                          const bench::DecodeOptions& decoding) {
  if (!options.model.empty()) {
    MORACLE_TRY(const Checkpoint checkpoint, Checkpoint::open(options.model));
    return bench::decode(checkpoint, decoding);
  }
  MORACLE_TRY(const bench::ModelShape shape, bench::find_model(options.model_shape));
  bench::RandomModelOptions weights{{}, {}, options.layers, most_bytes};
  MORACLE_TRY(weights.scheme, parse_scheme(options.schemes));
  MORACLE_TRY(weights.output, parse_scheme(options.output_scheme));
  return bench::decode(shape, weights, decoding);
}

}  // namespace

int run_model_bench(const BenchOptions& options) {
  bench::DecodeOptions decoding;
  if (options.model.empty()) {
    if (const auto known = rounds_to_bf16(options); !known) return fail(known.error());
  }
  if (Status set = set_devices(decoding.model, options.device); !set) return fail(set.error());
  decoding.model.threads = options.threads;
  if (Status joined = options.ranks.join(decoding.model, options.device); !joined)
    return fail(joined.error());
  // Only for the probe: the model opens its own device.
  const DeviceName& on = decoding.model.device;
  CLI_TRY(const std::shared_ptr<Device> device,
          open_device(on, device_options(on, 1, false, options.json)));
  ProgressBar bar("measuring");
  CLI_TRY(const std::unique_ptr<LimitsProbe> probe, make_probe(options, device, bar.callback()));
  decoding.context = options.context;
  decoding.seconds = options.seconds;
  CLI_TRY(decoding.model.backend, BackendMap::parse(options.backend));
  CLI_TRY(decoding.model.kv_cache, parse_kv_cache(options.kv_cache));
  CLI_TRY(decoding.model.activations, parse_activations(options.activations));
  CLI_TRY(decoding.model.weights, parse_weights(options.weights));
  CLI_TRY(decoding.model.quantization, parse_quantization(options.quantization));
  decoding.model.pin = options.pin;
  keep_kernels(decoding.model, options.json);
  CLI_TRY(decoding.model.tuned, read_tuning(options.cache, options.threads, on));
  decoding.model.progress = bar.callback();
  decoding.batches = options.batches;
  decoding.prompt = options.prompt;
  decoding.model.graphs = !options.no_graphs;
  decoding.model.device_memory = options.gpu_memory;
  decoding.model.host_memory = options.cpu_memory;
  decoding.routing_trace = options.routing_trace;
  decoding.speculate = {options.speculate, options.acceptance};
  CLI_TRY(const std::vector<bench::Decode> decodes,
          decode(options, bench_memory(*probe), decoding));
  CLI_TRY(const Limits limits, probe->measure(bar.callback()));
  bar.clear();
  if (options.json)
    print(document(options, limits, decodes));
  else
    std::cout << to_text(options, limits, decodes);
  return kDone;
}

}  // namespace moracle::cli
