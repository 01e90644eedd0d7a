// The tables of docs/support.md, docs/support_variants.md and docs/oracle.md. They call select(),
// so that they say what would happen.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "conformance/conformance.h"
#include "docs/generated.h"
#include "layout/layout.h"
#include "moracle/oracle.h"

namespace moracle::docs {
namespace {

/// A few tokens for a plain layer of the size of Qwen3-30B-A3B's.
Request plain(const Scheme& scheme) {
  return {.layer = {.name = "experts",
                    .num_experts = 128,
                    .hidden_size = 2048,
                    .intermediate_size = 768,
                    .top_k = 8,
                    .scheme = scheme},
          .max_num_tokens = 16};
}

/// Machines that lack nothing: every known GPU, beside a CPU with every feature, and any memory.
std::vector<Machine> machines() {
  constexpr int64_t kPlenty = int64_t{1} << 50;
  std::vector<Machine> all(Machine::known().begin(), Machine::known().end());
  for (Machine& machine : all) {
    machine.cpu.isa = static_cast<Isa>(~uint32_t{0});
    machine.cpu.memory_bytes = kPlenty;
    for (GpuInfo& gpu : machine.gpus) gpu.memory_bytes = gpu.max_allocation_bytes = kPlenty;
  }
  return all;
}

using Rules = std::vector<std::string_view>;

/// A machine and the rows to check on it. All rows are checked on the first machine. GPU rows are
/// also checked on every other machine with such a GPU; CPUs are equal on all machines here.
struct Query {
  Machine machine;
  std::vector<Backend> rows;
};

const std::vector<Query>& queries() {
  static const std::vector<Query> kAll = [] {
    std::vector<Query> all;
    for (Machine& machine : machines()) {
      std::vector<Backend> rows;
      for (const Backend& backend : backends()) {
        const bool has_gpu =
            std::any_of(machine.gpus.begin(), machine.gpus.end(),
                        [&](const GpuInfo& gpu) { return gpu.platform == backend.platform; });
        if (!all.empty() && !has_gpu) continue;
        rows.push_back(backend);
      }
      if (!rows.empty()) all.push_back({std::move(machine), std::move(rows)});
    }
    return all;
  }();
  return kAll;
}

/// For each row, by name, the rules that object, on the machine where fewest do. The rule `build`
/// is left out: the tables must not depend on the build that writes them.
std::map<std::string_view, Rules> objections(const Request& request) {
  std::map<std::string_view, Rules> fewest;
  for (const Query& query : queries()) {
    for (const Verdict& verdict : select(request, query.machine, query.rows).considered) {
      Rules rules;
      for (const Reason& reason : verdict.reasons) {
        if (reason.rule != "build") rules.push_back(reason.rule);
      }
      const auto [kept, first] = fewest.try_emplace(verdict.backend->name, rules);
      if (!first && rules.size() < kept->second.size()) kept->second = std::move(rules);
    }
  }
  return fewest;
}

std::string head(std::string_view first) {
  std::string text = str("| ", first, " |"), rule = "| --- |";
  for (const Backend& backend : backends()) {
    text += str(" `", backend.name, "` |");
    rule += " --- |";
  }
  return text + "\n" + rule + "\n";
}

// ---- features ----

bool any(const Scheme&) {
  return true;
}
bool integers(const Scheme& scheme) {
  const DType type = scheme.weight.dtype;
  return (type == DType::kI4 || type == DType::kI8) && !scheme.activation;
}
bool symmetric_integers(const Scheme& scheme) {
  return integers(scheme) && scheme.weight.symmetric;
}
bool integers_in_groups(const Scheme& scheme) {
  return integers(scheme) && scheme.weight.group.cols != GroupShape::kAll;
}

void route_as_deepseek_v3(Request& request) {
  request.layer.routing = {Score::kSigmoid, true, 8, 4, 2.5f, true};
}
void small_and_odd(Request& request) {
  request.layer.hidden_size = 130;
  request.layer.intermediate_size = 34;
}
void dense(Request& request) {
  request.layer.linear = true;
  request.layer.num_experts = request.layer.top_k = 1;
}

struct NamedFeature {
  std::string_view name;
  bool (*can_have)(const Scheme& scheme);
  void (*add)(Request& request);
};

// A new feature is one line here.
constexpr NamedFeature kFeatures[] = {
    {"zero points", symmetric_integers,
     [](Request& r) { r.layer.scheme.weight.symmetric = false; }},
    {"act-order (`desc_act`)", integers_in_groups, [](Request& r) { r.layer.group_index = true; }},
    {"groups of 33", integers_in_groups, [](Request& r) { r.layer.scheme.weight.group.cols = 33; }},
    {"biases", any, [](Request& r) { r.layer.bias = true; }},
    {"clamped SwiGLU (GPT-OSS)", any,
     [](Request& r) { r.layer.activation.function = Activation::kSwigluOai; }},
    {"sigmoid routing in groups (DeepSeek-V3)", any, route_as_deepseek_v3},
    {"sizes 130 → 34", any, small_and_odd},
    {"262,144 columns", any, [](Request& r) { r.layer.hidden_size = 262'144; }},
    {"dense linear layers", any, dense},
    {"4,096 tokens at once", any, [](Request& r) { r.max_num_tokens = 4096; }},
    {"the same bits in every batch", any, [](Request& r) { r.deterministic = true; }},
    {"experts spread over 8 ranks", any, [](Request& r) { r.parallel.ep_size = 8; }},
    {"activations batched by expert", any,
     [](Request& r) { r.parallel.format = ActivationFormat::kBatched; }},
    {"LoRA adapters of rank 16", any, [](Request& r) { r.lora_rank = 16; }},
    {"the router's weight on the input (Llama-4)", any,
     [](Request& r) {
       r.layer.top_k = 1;
       r.layer.routing.weight_on_input = true;
     }},
};

/// What a row says to a feature, over the schemes that it serves without.
struct Answer {
  int asked = 0, refused = 0;
  std::string_view rule;  ///< the first that refused
};

std::map<std::string_view, Answer> ask(const NamedFeature& feature) {
  std::map<std::string_view, Answer> answers;
  for (const Scheme& scheme : conformance::schemes()) {
    if (!feature.can_have(scheme)) continue;
    Request request = plain(scheme);
    feature.add(request);
    const auto without = objections(plain(scheme)), with = objections(request);
    for (const auto& [row, rules] : without) {
      if (!rules.empty()) continue;
      Answer& answer = answers[row];
      ++answer.asked;
      if (const Rules& now = with.at(row); !now.empty() && answer.refused++ == 0)
        answer.rule = now.front();
    }
  }
  return answers;
}

std::string cell(const Answer& answer) {
  if (answer.asked == 0) return "–";
  if (answer.refused == 0) return "yes";
  return str(answer.refused == answer.asked ? "" : "not all: ", answer.rule);
}

}  // namespace

std::string support_matrix() {
  std::string text = head("scheme");
  for (const Scheme& scheme : conformance::schemes()) {
    text += str("| `", name(scheme), "` |");
    const auto rules = objections(plain(scheme));
    for (const Backend& row : backends())
      text += str(" ", rules.at(row.name).empty() ? "yes" : rules.at(row.name).front(), " |");
    text += "\n";
  }
  std::vector<std::string> on_gpus;
  for (const Backend& backend : backends())
    if (backend.platform != Platform::kCpu) on_gpus.push_back(str("`", backend.name, "`"));
  return text + str("\nOnly in builds for their device: ", join(on_gpus), ".\n");
}

std::string feature_matrix() {
  std::string text = head("feature");
  for (const NamedFeature& feature : kFeatures) {
    text += str("| ", feature.name, " |");
    auto answers = ask(feature);
    for (const Backend& row : backends()) text += str(" ", cell(answers[row.name]), " |");
    text += "\n";
  }
  return text;
}

std::string variant_matrix() {
  std::string rule = "| --- |", head = "| scheme |";
  for (const conformance::Variant& variant : conformance::variants()) {
    head += str(" ", variant.name, " |");
    rule += " --- |";
  }
  std::map<std::string_view, std::string> lines;  // of each row's table
  for (const Scheme& scheme : conformance::schemes()) {
    for (auto& backend : backends()) lines[backend.name] += str("| `", name(scheme), "` |");
    for (const conformance::Variant& variant : conformance::variants()) {
      Request request = plain(scheme);
      variant.change(request);
      if (request.layer.routing.weight_on_input) request.layer.top_k = 1;
      for (const auto& [row, rules] : objections(request))
        lines[row] += rules.empty() ? " yes |" : str(" ", rules.front(), " |");
    }
    for (auto& backend : backends()) lines[backend.name] += "\n";
  }
  std::string text;
  for (const Backend& backend : backends()) {
    text += str(text.empty() ? "" : "\n", "### `", backend.name, "`\n\n", head, "\n", rule, "\n",
                lines[backend.name]);
  }
  return text;
}

std::string backend_rows() {
  std::string text = "| row | device | layout | what it is |\n| --- | --- | --- | --- |\n";
  for (const Backend& backend : backends()) {
    const std::string layout =
        backend.layout ? str("[", backend.layout->name, "](layouts.md#", backend.layout->name, ")")
                       : "–";
    text += str("| `", backend.name, "` | ", name(backend.platform), " | ", layout, " | ",
                backend.summary, " |\n");
  }
  return text;
}

}  // namespace moracle::docs
