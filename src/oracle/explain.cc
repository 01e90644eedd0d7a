// Formats a selection as text for users.
#include <algorithm>
#include <iomanip>
#include <map>

#include "base/text.h"
#include "oracle/backend.h"
#include "oracle/preferences.h"

namespace moracle {
namespace {

std::string headline(const LayerSpec& layer) {
  std::string text = str(layer.scheme_name(), " (", describe(layer.scheme), ")");
  if (layer.linear) return str(text, " · ", layer.hidden_size, " → ", layer.intermediate_size);
  return str(text, " · ", layer.num_experts, " experts, top-", layer.top_k, ", ", layer.hidden_size,
             " → ", layer.intermediate_size,
             layer.routing.score == Score::kUnknown ? ", routing unknown" : "");
}

std::string padded(std::string_view text, size_t width) {
  std::string cell(text);
  cell.resize(std::max(width, cell.size()), ' ');
  return cell;
}

// "measured here: 1.1 ms at 1 token, 104 ms at 1024"
std::string times(const std::vector<TunedTime>& tuned) {
  std::vector<std::string> shown;
  for (const TunedTime& time : tuned) {
    std::ostringstream ms;
    ms << std::setprecision(3) << time.us / 1e3;
    const char* what = !shown.empty() ? "" : time.num_tokens == 1 ? " token" : " tokens";
    shown.push_back(str(ms.str(), " ms at ", time.num_tokens, what));
  }
  return "measured here: " + join(shown);
}

std::vector<std::string> notes_on(const Verdict& verdict, bool chosen) {
  std::vector<std::string> notes;
  if (chosen) notes.emplace_back(verdict.fastest ? "fastest here" : "first accepted");
  if (!verdict.backend->built())
    notes.push_back(str("needs a build with ", name(verdict.backend->platform)));
  return notes;
}

// "→ cpu-amx, first accepted"
std::string choice_line(const Selection& selection) {
  for (const Verdict& verdict : selection.considered) {
    if (selection.plan && selection.plan->backend == verdict.backend)
      return str("→ ", verdict.backend->name, ", ", join(notes_on(verdict, true)), "\n");
  }
  return "→ none: every backend rejects it\n";
}

// Why a row goes into one line with others; empty: it has lines of its own.
std::string folded_as(const Verdict& verdict, const Request& request) {
  for (const Reason& reason : verdict.reasons)
    if (reason.rule == "requested") return "not requested";
  const bool elsewhere = request.platform && verdict.backend->platform != *request.platform;
  return elsewhere && request.backend == "auto" ? str("not for device ", name(*request.platform))
                                                : "";
}

}  // namespace

std::string explain(const Selection& selection, bool all_reasons) {
  size_t width = 0, rule_width = 0;
  std::vector<const Verdict*> shown;
  std::map<std::string, std::map<std::string_view, int>> folded;
  for (const Verdict& verdict : selection.considered) {
    const std::string why = all_reasons ? "" : folded_as(verdict, selection.request);
    if (!why.empty()) {
      ++folded[why][name(verdict.backend->platform)];
      continue;
    }
    shown.push_back(&verdict);
    width = std::max(width, verdict.backend->name.size());
    for (const Reason& reason : verdict.reasons)
      rule_width = std::max(rule_width, reason.rule.size());
  }
  std::string text = choice_line(selection) + headline(selection.request.layer) + "\n";
  for (const Verdict* one : shown) {
    const Verdict& verdict = *one;
    const bool chosen = selection.plan && selection.plan->backend == verdict.backend;
    const std::string start = (chosen ? "> " : "  ") + padded(verdict.backend->name, width) + "  ";
    const std::string indent(width + 9, ' ');
    if (verdict.accepted()) {
      const std::vector<std::string> notes = notes_on(verdict, chosen);
      text += str(start, "yes  ", join(notes), notes.empty() ? "" : ": ", verdict.backend->summary,
                  "\n");
      if (!verdict.tuned.empty()) text += indent + times(verdict.tuned) + "\n";
    }
    std::string lead = start + "no   ";
    for (const Reason& reason : verdict.reasons) {
      text += str(lead, padded(reason.rule, rule_width), "  needs ", reason.need, "; ", reason.have,
                  "\n");
      if (!all_reasons && selection.plan) break;
      lead = indent;
    }
    if (const Preference* moved = verdict.moved_back) {
      text +=
          str(indent, "moved behind ", moved->first, " (", moved->name, "): ", moved->reason, "\n");
    }
  }
  for (const auto& [why, platforms] : folded) {
    std::vector<std::string> counts;
    for (const auto& [platform, count] : platforms)
      counts.push_back(str(count, count == 1 ? " backend of " : " backends of ", platform));
    text += str("  ", why, ": ", join(counts), "\n");
  }
  return text;
}

}  // namespace moracle
