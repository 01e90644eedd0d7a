// Generates the tables of docs/support.md and docs/oracle.md with select(), so that they show its
// answers.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "conformance/conformance.h"
#include "conformance/support.h"
#include "docs/generated.h"
#include "layout/layout.h"
#include "oracle/backend.h"

namespace moracle::docs {
namespace {

using conformance::objections;
using conformance::plain_request;

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
     [](Request& r) { r.layer.activation = {.function = Activation::kSwigluOai, .limit = 7.f}; }},
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

/// The answer of a row to a feature, over the schemes that it serves without the feature.
struct Answer {
  int asked = 0, refused = 0;
  std::string_view rule;  ///< the first rule that objected
};

std::map<std::string_view, Answer> ask(const NamedFeature& feature) {
  std::map<std::string_view, Answer> answers;
  for (const Scheme& scheme : conformance::schemes()) {
    if (!feature.can_have(scheme)) continue;
    Request request = plain_request(scheme);
    feature.add(request);
    const auto without = objections(plain_request(scheme)), with = objections(request);
    for (const auto& [row, rules] : without) {
      if (!rules.empty()) continue;
      Answer& answer = answers[row];
      ++answer.asked;
      if (const auto& now = with.at(row); !now.empty() && answer.refused++ == 0)
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
    const auto rules = objections(plain_request(scheme));
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
