#include <algorithm>

#include "base/text.h"
#include "layout/layout.h"
#include "oracle/rules.h"

namespace moracle {
namespace {

Verdict consider(const Backend& backend, const Request& request, const Machine& machine) {
  Verdict verdict{&backend, {}};
  for (const Rule& rule : rules()) {
    if (auto reason = rule.refuse(backend, request, machine)) {
      reason->rule = rule.name;
      verdict.reasons.push_back(std::move(*reason));
    }
  }
  return verdict;
}

Plan make_plan(const Backend& backend, const Request& request) {
  Plan plan{&backend, request.layer, request.max_num_tokens, 0};
  for (const MatrixShape& shape : request.layer.matrices()) {
    plan.weight_bytes +=
        request.layer.num_experts * static_cast<int64_t>(backend.layout->sections(shape).bytes);
  }
  return plan;
}

}  // namespace

Selection select(const Request& request, const Machine& machine, std::span<const Backend> table) {
  Selection selection;
  selection.request = request;
  for (const Backend& backend : table) {
    selection.considered.push_back(consider(backend, request, machine));
    if (!selection.plan && selection.considered.back().accepted()) {
      selection.plan = make_plan(backend, request);
    }
  }
  return selection;
}

Result<Plan> Selection::chosen() const {
  if (plan) return *plan;
  std::vector<std::string> trail;
  std::vector<std::string_view> known;
  bool named = request.backend == "auto";
  for (const Verdict& verdict : considered) {
    known.push_back(verdict.backend->name);
    named |= verdict.backend->name == request.backend;
    // With a name given, only that row's reasons answer the question.
    if (request.backend != "auto" && verdict.backend->name != request.backend) continue;
    std::vector<std::string> reasons;
    for (const Reason& reason : verdict.reasons) {
      reasons.push_back(str(reason.rule, ": needs ", reason.need, ", ", reason.have));
    }
    trail.push_back(str(verdict.backend->name, " (", join(reasons, "; "), ")"));
  }
  if (!named) {
    return Error{ErrorKind::kInvalidArgument, "", "--backend", "auto or one of " + join(known),
                 str("'", request.backend, "' is none of these")};
  }
  return Error{ErrorKind::kUnsupported, "", request.layer.name,
               str("a backend that serves ", name(request.layer.scheme)),
               "none does: " + join(trail, ", ")};
}

namespace {
std::string headline(const LayerSpec& layer) {
  std::string text = str(name(layer.scheme), " (", describe(layer.scheme), ")");
  if (layer.linear) return str(text, " · ", layer.hidden_size, " → ", layer.intermediate_size);
  return str(text, " · ", layer.num_experts, " experts, top-", layer.top_k, ", ", layer.hidden_size,
             " → ", layer.intermediate_size);
}
std::string padded(std::string_view text, size_t width) {
  std::string cell(text);
  cell.resize(std::max(width, cell.size()), ' ');
  return cell;
}
}  // namespace

std::string explain(const Selection& selection, bool all_reasons) {
  size_t width = 0;
  for (const Verdict& verdict : selection.considered)
    width = std::max(width, verdict.backend->name.size());
  std::string text = headline(selection.request.layer) + "\n";
  for (const Verdict& verdict : selection.considered) {
    const bool chosen = selection.plan && selection.plan->backend == verdict.backend;
    const std::string start = (chosen ? "> " : "  ") + padded(verdict.backend->name, width) + "  ";
    if (verdict.accepted()) {
      text += start + "yes  " + (chosen ? "first that serves: " : "") +
              std::string(verdict.backend->summary) + "\n";
      continue;
    }
    std::string lead = start + "no   ";
    for (const Reason& reason : verdict.reasons) {
      text += str(lead, padded(reason.rule, 12), " needs ", reason.need, "; ", reason.have, "\n");
      if (!all_reasons) break;
      lead = std::string(width + 9, ' ');
    }
  }
  return text;
}

}  // namespace moracle
