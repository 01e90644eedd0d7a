// moracle explain: which backend serves a checkpoint's experts, and why every other one does not.
#include <iostream>

#include "base/text.h"
#include "command.h"
#include "terminal.h"

namespace moracle::cli {
namespace {

struct Group {
  std::vector<int64_t> layers;
  Selection selection;
};

Result<std::vector<Group>> groups_of(const Checkpoint& checkpoint, const Machine& machine,
                                     const std::string& backend) {
  std::vector<Group> groups;
  for (int64_t layer : checkpoint.moe_layers()) {
    auto weights = checkpoint.moe_layer(layer);
    if (!weights) return weights.error();
    bool found = false;
    for (Group& group : groups) {
      if (!group.selection.request.layer.same_but_name(weights->spec)) continue;
      group.layers.push_back(layer);
      found = true;
      break;
    }
    if (found) continue;
    Request request;
    request.layer = weights->spec;
    request.backend = backend;
    groups.push_back({{layer}, select(request, machine)});
  }
  return groups;
}

Json to_json(const std::vector<Group>& groups, const Machine& machine) {
  Json list = Json::array();
  for (const Group& group : groups) {
    Json considered = Json::array();
    for (const Verdict& verdict : group.selection.considered) {
      Json reasons = Json::array();
      for (const Reason& reason : verdict.reasons) {
        reasons.push_back({{"rule", reason.rule}, {"need", reason.need}, {"have", reason.have}});
      }
      considered.push_back({{"backend", verdict.backend->name},
                            {"accepted", verdict.accepted()},
                            {"reasons", reasons}});
    }
    const auto& plan = group.selection.plan;
    list.push_back({{"layers", group.layers},
                    {"scheme", name(group.selection.request.layer.scheme)},
                    {"chosen", plan ? Json(plan->backend->name) : Json(nullptr)},
                    {"weight_bytes", plan ? Json(plan->weight_bytes) : Json(nullptr)},
                    {"considered", considered}});
  }
  return {{"machine", machine.name}, {"groups", list}};
}

struct Options {
  std::string folder, machine = "here", backend = "auto";
  bool json = false;
};

int run(const Options& options) {
  CLI_TRY(const Machine machine, Machine::find(options.machine));
  CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(options.folder));
  CLI_TRY(const std::vector<Group> groups, groups_of(checkpoint, machine, options.backend));
  // A name that no row has is a wrong option; a row that refuses is an answer.
  for (const Group& group : groups) {
    Result<Plan> plan = group.selection.chosen();
    if (!plan && plan.error().kind == ErrorKind::kInvalidArgument) return fail(plan.error());
  }
  if (options.json) print(to_json(groups, machine));
  for (const Group& group : groups) {
    if (!options.json) {
      std::cout << bold("layers " + ranges(group.layers)) << " · " << explain(group.selection);
    }
    Result<Plan> plan = group.selection.chosen();
    if (!plan) return fail(plan.error());
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
        verb.add_option("--backend", options->backend, "auto, or a backend's name")
            ->capture_default_str();
        verb.add_flag("--json", options->json, "One JSON document on stdout");
        return [options] { return run(*options); };
      },
      chosen);
}

}  // namespace moracle::cli
