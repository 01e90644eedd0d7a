#include "ranks/ranks_text.h"

#include <algorithm>

#include "base/text.h"
#include "ranks/placement_text.h"
#include "terminal.h"

namespace moracle::cli {
namespace {

constexpr Spread kSpreads[] = {Spread::kReplicated, Spread::kDispatched};

ExchangeSelection exchange_for(const Machine& machine, const ModelOptions& options) {
  const Platform platform = options.device.platform;
  ExchangeRequest request{platform, options.parallel.ep_size, options.exchange};
  request.num_devices = std::count_if(machine.gpus.begin(), machine.gpus.end(),
                                      [&](const GpuInfo& gpu) { return gpu.platform == platform; });
  return select_exchange(request, machine.name != "here");
}

struct ExpertLayers {
  const Plan* plan;
  int64_t count;
};
std::vector<ExpertLayers> expert_layers(const std::vector<Choice>& choices) {
  std::vector<ExpertLayers> layers;
  for (const Choice& choice : choices)
    if (choice.part == "experts" && choice.selection.plan)
      layers.push_back({&*choice.selection.plan, static_cast<int64_t>(choice.layers.size())});
  return layers;
}

const Plan* output_plan(const std::vector<Choice>& choices) {
  for (const Choice& choice : choices)
    if (choice.part == "output" && choice.selection.plan) return &*choice.selection.plan;
  return nullptr;
}

ExchangeBytes bytes_of(const ExpertLayers& layers, Spread spread, const ModelOptions& options) {
  return exchange_bytes(layers.plan->layer, options.parallel.ep_size, spread,
                        layers.plan->activation_dtype, options.deterministic);
}

}  // namespace

std::string ranks_text(const std::vector<Choice>& choices, const Machine& machine,
                       const ModelOptions& options) {
  const int64_t size = options.parallel.ep_size;
  std::string text =
      str("\n", bold(str(size, " ranks")), ", ", name(options.spread),
          options.tp_size > 1 ? ", attention and dense layers divided" : "",
          options.lm_head_size > 1 ? ", lm_head divided" : "", ", ", placement_name(options),
          " placement; exchange:\n", printable_lines(explain(exchange_for(machine, options))));
  Table table;
  table.row({"bytes that a rank sends", "dispatch", "combine", "all layers"});
  for (const ExpertLayers& layers : expert_layers(choices)) {
    for (const Spread spread : kSpreads) {
      const ExchangeBytes bytes = bytes_of(layers, spread, options);
      table.row({str(spread == options.spread ? "> " : "  ", name(spread), ", per token and layer"),
                 str(bytes.dispatch), str(bytes.combine),
                 str((bytes.dispatch + bytes.combine) * layers.count)});
    }
    const Plan& plan = *layers.plan;
    table.row({str("  experts of rank 0, of ", plan.layer.num_experts),
               str(plan.experts.num_local()), "", megabytes(plan.weight_bytes * layers.count)});
  }
  if (const Plan* const plan = output_plan(choices)) {
    table.row({str("  rows of lm_head on rank 0", options.lm_head_size > 1 ? "" : ": all"),
               str(plan->layer.w13_rows()), "", megabytes(plan->weight_bytes)});
  }
  return text + table.text({1, 2, 3}) + load_text(options);
}

Json ranks_json(const std::vector<Choice>& choices, const Machine& machine,
                const ModelOptions& options) {
  const ExchangeSelection selection = exchange_for(machine, options);
  Json considered = Json::array(), sent = Json::array();
  for (const ExchangeVerdict& verdict : selection.considered) {
    Json reasons = Json::array();
    for (const Reason& reason : verdict.reasons)
      reasons.push_back({{"rule", reason.rule}, {"need", reason.need}, {"have", reason.have}});
    considered.push_back({{"exchange", verdict.row->name}, {"reasons", reasons}});
  }
  for (const ExpertLayers& layers : expert_layers(choices)) {
    for (const Spread spread : kSpreads) {
      const ExchangeBytes bytes = bytes_of(layers, spread, options);
      sent.push_back({{"spread", name(spread)},
                      {"layers", layers.count},
                      {"dispatch_bytes", bytes.dispatch},
                      {"combine_bytes", bytes.combine}});
    }
  }
  Json json = {
      {"ep", options.parallel.ep_size},
      {"tp", options.tp_size},
      {"mode", name(options.spread)},
      {"placement", placement_name(options)},
      {"chosen", selection.chosen != nullptr ? Json(selection.chosen->name) : Json(nullptr)},
      {"considered", considered},
      {"per_token_and_layer", sent}};
  if (const Plan* const plan = output_plan(choices))
    json["lm_head"] = {{"ranks", options.lm_head_size},
                       {"rows", plan->layer.w13_rows()},
                       {"weight_bytes", plan->weight_bytes}};
  if (!options.measured_load) return json;
  json["load"] = load_json(options);
  json["map"] = map_json(options);
  return json;
}

}  // namespace moracle::cli
