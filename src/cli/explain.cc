// moracle explain: which backend serves a checkpoint's experts, and why every other one does not.
#include <algorithm>
#include <iostream>

#include "base/text.h"
#include "command.h"
#include "model_options.h"
#include "plan_text.h"
#include "terminal.h"

namespace moracle::cli {
namespace {

struct Group {
  std::vector<int64_t> layers;
  Selection selection;
};

struct Options {
  std::string folder, machine = "here", backend = "auto", quantization, activations, device, cache;
  int64_t num_tokens = 512, lora_rank = 0, ep_size = 1;
  bool deterministic = false, batched = false, json = false;
};

Result<Request> request_of(const Options& options) {
  Request request;
  request.max_num_tokens = options.num_tokens;
  request.lora_rank = options.lora_rank;
  request.parallel.ep_size = options.ep_size;
  request.deterministic = options.deterministic;
  if (options.batched) request.parallel.format = ActivationFormat::kBatched;
  if (options.device.empty()) return request;
  const Result<DeviceName> device = parse_device(options.device);
  if (!device) return device.error();
  request.platform = device->platform;
  if (device->platform != Platform::kCpu) request.device_index = device->index;
  return request;
}

// Layers that are equal but for their names, and for which the same was asked, together.
Result<std::vector<Group>> groups_of(const Checkpoint& checkpoint, const Machine& machine,
                                     const Request& wanted, const BackendMap& backend,
                                     const QuantizationMap& quantization,
                                     ActivationPrecision activations) {
  std::vector<Group> groups;
  std::vector<std::string> names;
  for (int64_t layer : checkpoint.moe_layers()) {
    auto weights = checkpoint.moe_layer(layer, quantization);
    if (!weights) return weights.error();
    set_activations(*weights, activations);
    Request request = wanted;
    request.layer = weights->spec;
    request.backend = backend.for_layer(request.layer.name);
    names.push_back(request.layer.name);
    const auto equal = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      const Request& other = group.selection.request;
      return other.layer.same_but_name(request.layer) && other.backend == request.backend;
    });
    if (equal != groups.end())
      equal->layers.push_back(layer);
    else
      groups.push_back({{layer}, select(request, machine)});
  }
  if (Status used = backend.check_used(names); !used) return used.error();
  return groups;
}

Json to_json(const std::vector<Group>& groups, const Machine& machine) {
  Json list = Json::array();
  for (const Group& group : groups) {
    const auto& plan = group.selection.plan;
    list.push_back({{"layers", group.layers},
                    {"scheme", name(group.selection.request.layer.scheme)},
                    {"chosen", plan ? Json(plan->backend->name) : Json(nullptr)},
                    {"weight_bytes", plan ? Json(plan->weight_bytes) : Json(nullptr)},
                    {"considered", considered_json(group.selection)},
                    {"plan", plan_json(plan)}});
  }
  return {{"machine", machine.name}, {"groups", list}};
}

int run(const Options& options) {
  CLI_TRY(Machine machine, Machine::find(options.machine));
  if (options.machine == "here") {
    CLI_TRY(machine.tuned,
            read_tuning(options.cache, 0, options.device.empty() ? "cpu" : options.device));
  }
  CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(options.folder));
  CLI_TRY(const BackendMap backend, BackendMap::parse(options.backend));
  QuantizationMap quantization;
  if (!options.quantization.empty()) {
    CLI_TRY(quantization, QuantizationMap::parse(options.quantization));
  }
  CLI_TRY(const ActivationPrecision activations, parse_activations(options.activations));
  CLI_TRY(Request wanted, request_of(options));
  wanted.bf16_activations = activations == ActivationPrecision::kBf16;
  CLI_TRY(const std::vector<Group> groups,
          groups_of(checkpoint, machine, wanted, backend, quantization, activations));
  if (options.json) print(to_json(groups, machine));
  for (const Group& group : groups) {
    if (!options.json) {
      std::cout << bold((group.layers.size() == 1 ? "layer " : "layers ") + ranges(group.layers))
                << " · " << explain(group.selection);
      if (group.selection.plan) std::cout << describe(*group.selection.plan);
    }
    if (Result<Plan> plan = group.selection.chosen(); !plan) {
      Error error = plan.error();
      if (!options.json) error.fact = "every row refuses, for the reasons above";
      return fail(error);
    }
  }
  return kDone;
}

}  // namespace

void add_explain(CLI::App& app, Work& chosen) {
  add_verb(
      app, "explain", "Show which backend serves the experts, and why no other",
      [](CLI::App& verb) -> Work {
        auto options = std::make_shared<Options>();
        verb.add_option("MODEL", options->folder, "Folder of the checkpoint")->required();
        verb.add_option("--machine", options->machine, "here, or a known machine (see machines)")
            ->capture_default_str();
        verb.add_option("--backend", options->backend, kBackendHelp)->capture_default_str();
        verb.add_option("--quantization", options->quantization, kQuantizationHelp);
        verb.add_option("--activations", options->activations, kActivationsHelp);
        verb.add_option("--device", options->device, "cpu, cuda[:n] or opencl[:n]; default: any");
        verb.add_option("--cache", options->cache, kCacheHelp);
        verb.add_option("--num-tokens", options->num_tokens, "Most tokens at once")
            ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
            ->capture_default_str();
        verb.add_option("--lora-rank", options->lora_rank, "Largest rank of an adapter; 0: none")
            ->check(CLI::Range(int64_t{0}, int64_t{1} << 16))
            ->capture_default_str();
        verb.add_option("--ep-size", options->ep_size, "Ranks that share the experts")
            ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
            ->capture_default_str();
        verb.add_flag("--batched", options->batched, "Activations come batched by expert");
        verb.add_flag("--deterministic", options->deterministic,
                      "The same bits for a token whatever else is in the batch");
        verb.add_flag("--json", options->json, "One JSON document on stdout");
        return [options] { return run(*options); };
      },
      chosen);
}

}  // namespace moracle::cli
