#include "plan_text.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "base/printable.h"
#include "base/text.h"
#include "caches/memory_rates.h"
#include "terminal.h"

namespace moracle::cli {
namespace {

// Print each text once, attention's last.
std::vector<std::string> reasons_of(const ModelPlan& plan) {
  std::vector<std::string> all;
  const auto add = [&](const std::string& text) {
    if (std::find(all.begin(), all.end(), text) == all.end()) all.push_back(text);
  };
  for (const Choice& choice : plan.choices)
    for (const std::string& reason : reasons(choice.selection.plan->matrices)) add(reason);
  if (!plan.attention_reason.empty()) add("attention of prompts: " + plan.attention_reason);
  return all;
}

}  // namespace

std::string backend_text(const Backend& backend) {
  std::string text(name(backend));
  if (!is_built(backend)) text += str(" (needs a build with ", name(platform(backend)), ")");
  return text;
}

std::string not_used_text(const Checkpoint& checkpoint) {
  std::string text;
  for (const std::string& one : checkpoint.not_used())
    text += str("\n  not used: ", printable(one), "\n");
  return text;
}

std::string not_followed_text(const GenerationConfig& config) {
  std::string text;
  for (const std::string& one : config.not_followed) text += str("\n  ", printable(one), "\n");
  return text;
}

std::string residency_text(const std::optional<ResidencyPlan>& residency) {
  if (!residency) return "";
  const ResidencyPlan& plan = *residency;
  std::string text = str("  weights ", name(plan.chosen));
  if (plan.packed_bytes > 0) text += str(", packed ", megabytes(plan.packed_bytes));
  if (plan.folded_bytes > 0)
    text += str(", folded ", megabytes(plan.folded_bytes), " (", plan.schemes, ")");
  text += str(": ", printable(plan.reason), "\n");
  for (const ResidencyTime& time : plan.times)
    text += str("    ", time.num_tokens, " tokens: packed ", rounded(time.us_packed),
                " us, folded ", rounded(time.us_folded), " us (measured here)\n");
  return text;
}

Json residency_json(const std::optional<ResidencyPlan>& residency) {
  if (!residency) return nullptr;
  const ResidencyPlan& plan = *residency;
  Json times = Json::array();
  for (const ResidencyTime& time : plan.times)
    times.push_back({{"num_tokens", time.num_tokens},
                     {"us_packed", time.us_packed},
                     {"us_folded", time.us_folded}});
  const auto planned = [](int64_t bytes) { return bytes > 0 ? Json(bytes) : Json(); };
  return {{"chosen", name(plan.chosen)},
          {"packed_bytes", planned(plan.packed_bytes)},
          {"folded_bytes", planned(plan.folded_bytes)},
          {"schemes", plan.schemes.empty() ? Json() : Json(plan.schemes)},
          {"reason", plan.reason},
          {"times", times}};
}

void show_choices(const Model& model, const Checkpoint& checkpoint) {
  Table table;
  for (const Choice& choice : model.choices()) {
    std::vector<std::string_view> others;
    for (const Verdict& verdict : choice.selection.considered) {
      if (verdict.accepted() && verdict.backend != choice.selection.plan->backend) {
        others.push_back(name(*verdict.backend));
      }
    }
    table.row({choice.part, choice.layers.empty() ? "" : "layers " + ranges(choice.layers),
               choice.selection.request.layer.scheme_name(),
               "→ " + std::string(name(*choice.selection.plan->backend)),
               others.empty() ? "" : "(also possible: " + join(others) + ")"});
  }
  std::cerr << table.text() << residency_text(model.residency()) << not_used_text(checkpoint);
}

std::string placement_text(const ModelPlan& plan, const std::vector<Choice>& choices,
                           const MemoryRates& rates) {
  if (plan.num_slots < 0) return "";
  const auto experts = std::find_if(choices.begin(), choices.end(),
                                    [](const Choice& one) { return one.part == "experts"; });
  const int64_t all =
      experts == choices.end() ? plan.num_on_host : experts->selection.plan->layer.num_experts;
  std::string text = str("  ", plan.num_slots, " of ", all,
                         " experts of each layer in slots of the "
                         "device, ",
                         megabytes(plan.total_bytes()),
                         " there; the CPU computes the "
                         "others: ",
                         plan.num_on_host, " in host memory, ", megabytes(plan.host_bytes), "\n");
  for (const SlotDevicePlan& other : plan.slot_devices)
    text += str("  ", other.num_slots, " more on ", name(other.device), ", ",
                megabytes(other.bytes), " there\n");
  if (plan.num_on_host < all)
    text += str("  the files have the other ", all - plan.num_on_host,
                ": each is read and packed when a step needs it\n");
  if (!plan.estimate) {
    return text +
           "  no estimate of tokens per second: it needs rates (moracle tune MODEL --device "
           "… measures them, or --rates)\n";
  }
  const DecodeEstimate& of = *plan.estimate;
  text += str("  estimate, one sequence with an empty cache: ", rounded(of.tokens_per_second),
              " tokens per second, ", rounded(of.without_slots), " without slots; ",
              megabytes(of.crossing_bytes), " cross per token\n  from ", describe(rates),
              ", and choices as persistent as published ones: ", rounded(100 * of.hit_rate),
              " % in slots");
  if (of.read_rate > 0) text += str(", ", rounded(100 * of.read_rate), " % read from files");
  Table others;
  for (const SplitEstimate& other : of.others)
    others.row({other.split, str(rounded(other.tokens_per_second), " tokens per second"),
                other.reason.empty() ? "faster by this estimate" : other.reason});
  return text + "\n  otherwise:\n" + others.text();
}

namespace {

Json slot_devices_json(const ModelPlan& plan) {
  Json all = Json::array();
  for (const SlotDevicePlan& other : plan.slot_devices) {
    all.push_back({{"device", name(other.device)},
                   {"num_slots", other.num_slots},
                   {"bytes", other.bytes},
                   {"memory_bytes", other.memory_bytes}});
  }
  return all;
}

Json to_json(const std::optional<DecodeEstimate>& estimate) {
  if (!estimate) return nullptr;
  Json others = Json::array();
  for (const SplitEstimate& other : estimate->others) {
    others.push_back({{"split", other.split},
                      {"tokens_per_second", other.tokens_per_second},
                      {"reason", other.reason.empty() ? Json() : Json(other.reason)}});
  }
  return {{"tokens_per_second", estimate->tokens_per_second},
          {"tokens_per_second_without_slots", estimate->without_slots},
          {"hit_rate", estimate->hit_rate},
          {"read_rate", estimate->read_rate},
          {"crossing_bytes", estimate->crossing_bytes},
          {"others", others}};
}

}  // namespace

Json placement_json(const ModelPlan& plan) {
  if (plan.num_slots < 0) return nullptr;
  return {{"num_slots", plan.num_slots},
          {"num_on_host", plan.num_on_host},
          {"host_bytes", plan.host_bytes},
          {"device_bytes", plan.total_bytes()},
          {"slot_devices", slot_devices_json(plan)},
          {"estimate", to_json(plan.estimate)}};
}

void show(const ModelPlan& plan, const MemoryRates& rates) {
  Table parts;
  parts.row({"part", "layers", "scheme", "backend", "layout", "weights", "workspace"});
  for (const Choice& choice : plan.choices) {
    const Plan& one = *choice.selection.plan;
    const auto count = static_cast<int64_t>(std::max<size_t>(choice.layers.size(), 1));
    parts.row({choice.part, ranges(choice.layers), one.layer.scheme_name(),
               backend_text(*one.backend), std::string(one.layout),
               megabytes(one.weight_bytes * count), megabytes(one.workspace_bytes)});
  }
  Table kernels;
  for (const Choice& choice : plan.choices) {
    const Plan& one = *choice.selection.plan;
    for (const MatrixPlan& matrix : one.matrices) {
      std::string part = choice.part;
      std::string shape = str("[", matrix.shape.n, ", ", matrix.shape.k, "]");
      for (const KernelUse& use : matrix.kernels)
        kernels.row({std::exchange(part, ""), std::exchange(shape, ""), describe(use)});
    }
  }
  Table sums;
  sums.row({"weights", megabytes(plan.weight_bytes), "packed, including the embedding"});
  sums.row({"workspace", megabytes(plan.workspace_bytes), "shared by all layers"});
  sums.row({"kernel scratch", megabytes(plan.scratch_bytes), "allocated once"});
  sums.row({"activations", megabytes(plan.activation_bytes), "between layers"});
  if (plan.transfer_bytes > 0)
    sums.row(
        {"transfers", megabytes(plan.transfer_bytes), "experts on their way from host memory"});
  sums.row({"total", megabytes(plan.total_bytes()),
            "of " + megabytes(plan.memory_bytes) + " on the device"});
  if (plan.num_slots >= 0)
    sums.row({"host memory", megabytes(plan.host_bytes), "experts, beside the total"});
  sums.row({"KV cache", megabytes(plan.cache_bytes_per_token * 1000),
            str("in addition for every 1,000 tokens, as ", kv_cache_name(plan.cache_dtype))});
  if (plan.state_bytes > 0) {
    sums.row({"recurrent state", megabytes(2 * plan.state_bytes),
              "in addition for every sequence, with its checkpoint"});
  }
  std::cout << parts.text({5, 6}) << "\n" << kernels.text() << "\n";
  const std::vector<std::string> reasons = reasons_of(plan);
  for (const std::string& reason : reasons) std::cout << "  " << reason << "\n";
  if (!reasons.empty()) std::cout << "\n";
  std::cout << residency_text(plan.residency) << (plan.residency ? "\n" : "") << sums.text({1});
  if (plan.num_slots >= 0) std::cout << "\n" << placement_text(plan, plan.choices, rates);
}

Json to_json(const ModelPlan& plan) {
  Json choices = Json::array();
  for (const Choice& choice : plan.choices) {
    choices.push_back({{"part", choice.part},
                       {"layers", choice.layers},
                       {"scheme", choice.selection.plan->layer.scheme_name()},
                       {"plan", plan_json(choice.selection.plan)}});
  }
  return {
      {"choices", choices},
      {"weight_bytes", plan.weight_bytes},
      {"workspace_bytes", plan.workspace_bytes},
      {"scratch_bytes", plan.scratch_bytes},
      {"activation_bytes", plan.activation_bytes},
      {"num_slots", plan.num_slots >= 0 ? Json(plan.num_slots) : Json()},
      {"num_on_host", plan.num_on_host >= 0 ? Json(plan.num_on_host) : Json()},
      {"host_bytes", plan.host_bytes},
      {"slot_devices", slot_devices_json(plan)},
      {"estimate", to_json(plan.estimate)},
      {"residency", residency_json(plan.residency)},
      {"transfer_bytes", plan.transfer_bytes},
      {"cache_bytes_per_token", plan.cache_bytes_per_token},
      {"state_bytes", plan.state_bytes},
      {"cache_dtype", kv_cache_name(plan.cache_dtype)},
      {"attention_reason", plan.attention_reason.empty() ? Json() : Json(plan.attention_reason)},
      {"total_bytes", plan.total_bytes()},
      {"memory_bytes", plan.memory_bytes}};
}

}  // namespace moracle::cli
