// moracle explain: shows which backend serves a checkpoint's experts, and the reasons against the
// others.
#include "models/explain.h"

#include <algorithm>
#include <iostream>

#include "base/text.h"
#include "command.h"
#include "numbers.h"
#include "options/model_options.h"
#include "options/tokenizer_fact.h"
#include "plan_text.h"
#include "ranks/ranks_text.h"
#include "terminal.h"

namespace moracle::cli {
namespace explain_verb {
namespace {

struct Options {
  ModelArguments model;
  std::string machine = "here";
  int64_t num_tokens = 0, lora_rank = 0, ep_size = 1;
  bool batched = false, all = false;
};

ExpertWishes wishes_of(const Options& options) {
  ExpertWishes wishes;
  wishes.lora_rank = options.lora_rank;
  if (options.batched) wishes.format = ActivationFormat::kBatched;
  return wishes;
}

bool is_experts(const Choice& choice) {
  return choice.part == "experts";
}

Json choice_json(const Choice& choice) {
  const auto& plan = choice.selection.plan;
  const LayerSpec& layer = choice.selection.request.layer;
  return {{"part", choice.part},
          {"layers", choice.layers},
          {"scheme", layer.scheme_name()},
          {"routing", is_experts(choice) ? Json(name(layer.routing)) : Json(nullptr)},
          {"chosen", plan ? Json(name(*plan->backend)) : Json(nullptr)},
          {"weight_bytes", plan ? Json(plan->weight_bytes) : Json(nullptr)},
          {"considered", considered_json(choice.selection)},
          {"plan", plan_json(plan)}};
}

Json to_json(const ModelExplanation& model, const Checkpoint& checkpoint,
             const TokenizerFact& tokenizer, const Machine& machine, const ModelOptions& options) {
  Json groups = Json::array(), others = Json::array();
  for (const Choice& choice : model.choices)
    (is_experts(choice) ? groups : others).push_back(choice_json(choice));
  const bool many = options.parallel.ep_size > 1;
  return {{"machine", machine.name},
          {"device", name(options.device)},
          {"parallel", many ? ranks_json(model.choices, machine, options) : Json(nullptr)},
          {"groups", groups},
          {"others", others},
          {"placement", model.plan ? placement_json(*model.plan) : Json(nullptr)},
          {"residency", residency_json(model.residency)},
          {"tokenizer", tokenizer.json()},
          {"not_used", checkpoint.not_used()},
          {"not_runnable", model.not_runnable.empty() ? Json(nullptr) : Json(model.not_runnable)}};
}

// Prints the experts with reasons, and each other part in one line.
void show(const ModelExplanation& model, const Checkpoint& checkpoint, const Machine& machine,
          const ModelOptions& options, bool all) {
  const std::string where = str(" · machine ", machine.name, ", device ", name(options.device));
  Table others;
  for (const Choice& choice : model.choices) {
    const Selection& selection = choice.selection;
    const std::string layers = str(choice.layers.size() == 1 ? "layer " : "layers ",
                                   choice.layers.empty() ? "" : ranges(choice.layers));
    if (!is_experts(choice)) {
      others.row({choice.part, choice.layers.empty() ? "" : layers,
                  selection.request.layer.scheme_name(),
                  selection.plan ? "→ " + backend_text(*selection.plan->backend) : "→ none"});
      continue;
    }
    std::string text = explain(selection, all);
    text.insert(text.find('\n'), where);
    std::cout << bold(layers) << " " << printable_lines(text);
    if (selection.plan) std::cout << printable_lines(describe(*selection.plan));
  }
  std::cout << others.text();
  std::cout << residency_text(model.residency);
  if (model.plan && model.plan->num_slots >= 0)
    std::cout << "\n" << placement_text(*model.plan, model.choices, options.rates);
  if (options.parallel.ep_size > 1) std::cout << ranks_text(model.choices, machine, options);
  std::cout << not_used_text(checkpoint);
  if (!all) std::cout << "\n  --all shows every reason\n";
}

int run(const Options& options) {
  CLI_TRY(const Machine machine, Machine::find(options.machine));
  CLI_TRY(ModelOptions model_options, options.model.options(machine));
  model_options.max_num_tokens = options.num_tokens;
  if (options.ep_size > 1) model_options.parallel.ep_size = options.ep_size;
  CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(options.model.folder));
  CLI_TRY(const ModelExplanation model,
          explain(checkpoint, model_options, machine, wishes_of(options)));
  const TokenizerFact tokenizer = TokenizerFact::of(options.model.folder);
  if (options.model.json)
    print(to_json(model, checkpoint, tokenizer, machine, model_options));
  else
    show(model, checkpoint, machine, model_options, options.all);
  for (const Choice& choice : model.choices) {
    if (!is_experts(choice)) continue;
    if (Result<Plan> plan = choice.selection.chosen(); !plan) {
      Error error = plan.error();
      if (!options.model.json) error.fact = "every backend rejects it, see the reasons above";
      return fail(error);
    }
  }
  if (!options.model.json && !tokenizer.error.empty())
    std::cout << "\n  the tokenizer " << printable(tokenizer.text()) << "\n";
  if (model.not_runnable.empty() || options.model.json) return kDone;
  const bool experts_alone = std::all_of(model.choices.begin(), model.choices.end(), is_experts);
  std::cout << "\n  "
            << (experts_alone ? "only the experts of this model can be used: "
                              : "the whole model cannot run: ")
            << model.not_runnable << "\n";
  return kDone;
}

}  // namespace
}  // namespace explain_verb

void add_explain(CLI::App& app, Work& chosen) {
  add_verb(
      app, "explain", "Show which backend serves the experts, and why the others do not",
      [](CLI::App& verb) -> Work {
        auto options = std::make_shared<explain_verb::Options>();
        options->model.add_to(verb);
        verb.add_option("--machine", options->machine,
                        "here, or a known machine (moracle machines lists them)")
            ->capture_default_str();
        verb.add_option("--num-tokens", options->num_tokens,
                        "Maximum tokens per step; 0: 4096 on an NVIDIA GPU, else 512")
            ->transform(whole(int64_t{0}, int64_t{1} << 30))
            ->capture_default_str();
        verb.add_option("--lora-rank", options->lora_rank,
                        "Plan for LoRA adapters up to this rank, without a file; 0: none")
            ->transform(whole(int64_t{0}, int64_t{1} << 16))
            ->capture_default_str();
        verb.add_option("--ep-size", options->ep_size, "Number of ranks that share the experts")
            ->transform(whole(int64_t{1}, int64_t{1} << 20))
            ->capture_default_str();
        verb.add_flag("--batched", options->batched,
                      "Activations are batched by expert: [experts, max tokens, hidden size]");
        verb.add_flag("--all", options->all,
                      "Show every reason, and the backends of other devices, too");
        return [options] { return explain_verb::run(*options); };
      },
      chosen);
}

}  // namespace moracle::cli
