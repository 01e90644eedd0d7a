#include <algorithm>

#include "base/text.h"
#include "oracle/plan.h"
#include "oracle/preferences.h"
#include "oracle/rules/rules.h"
#include "oracle/tuned.h"

namespace moracle {
namespace {

std::vector<Reason> objections(const Backend& backend, const Request& request,
                               const Machine& machine) {
  std::vector<Reason> reasons;
  for (const Rule& rule : rules()) {
    if (auto reason = rule.refuse(backend, request, machine)) {
      reason->rule = rule.name;
      reasons.push_back(std::move(*reason));
      if (rule.ends) break;
    }
  }
  return reasons;
}

// True if the row serves the layer's weights with float activations. The user decides about that:
// quantized activations are never left out unasked.
bool serves_without_codes(const Backend& backend, Request request, const Machine& machine) {
  if (!request.layer.scheme.activation) return false;
  request.layer.scheme.activation.reset();
  return objections(backend, request, machine).empty();
}

Verdict consider(const Backend& backend, const Request& request, const Machine& machine) {
  Verdict verdict{&backend, objections(backend, request, machine)};
  if (!verdict.accepted() && serves_without_codes(backend, request, machine))
    for (Reason& reason : verdict.reasons) reason.need += " (activations=16bit would serve)";
  return verdict;
}

// Moves the rows that `preference` holds back behind the last row that it favours. All other rows
// keep their order.
void apply(const Preference& preference, std::vector<Verdict>& rows) {
  auto is = [](std::string_view beginning) {
    return [beginning](const Verdict& v) { return v.backend->name.starts_with(beginning); };
  };
  const auto last = std::find_if(rows.rbegin(), rows.rend(), is(preference.first)).base();
  const auto moved = std::stable_partition(rows.begin(), last, std::not_fn(is(preference.over)));
  for (auto row = moved; row != last; ++row) row->moved_back = &preference;
}

}  // namespace

Selection select(const Request& request, const Machine& machine) {
  return select(request, machine, backends());
}

Selection select(const Request& request, const Machine& machine, std::span<const Backend> table) {
  Selection selection;
  selection.request = request;
  for (const Backend& backend : table)
    selection.considered.push_back(consider(backend, request, machine));
  for (const Preference& preference : preferences()) {
    if (preference.when(request, machine)) apply(preference, selection.considered);
  }
  apply_tuning(request, machine, selection.considered);
  const auto first = std::find_if(selection.considered.begin(), selection.considered.end(),
                                  [](const Verdict& verdict) { return verdict.accepted(); });
  if (first != selection.considered.end())
    selection.plan = make_plan(*first->backend, request, machine);
  return selection;
}

Result<Plan> Selection::chosen() const {
  if (plan) return *plan;
  if (const Status valid = check(request.layer); !valid) {
    Error error = valid.error();
    if (!request.layer.name.empty()) error.place = str(request.layer.name, ": ", error.place);
    return error;
  }
  std::vector<std::string> trail;
  std::vector<std::string_view> known;
  bool named = request.backend == "auto";
  for (const Verdict& verdict : considered) {
    known.push_back(verdict.backend->name);
    named |= verdict.backend->name == request.backend;
    // If the user names a backend, only that row's reasons are relevant.
    if (request.backend != "auto" && verdict.backend->name != request.backend) continue;
    std::vector<std::string> reasons;
    for (const Reason& reason : verdict.reasons) {
      reasons.push_back(str(reason.rule, ": needs ", reason.need, ", ", reason.have));
    }
    trail.push_back(str(verdict.backend->name, " (", join(reasons, "; "), ")"));
  }
  if (!named) {
    return Error{ErrorKind::kInvalidArgument, "", "backend", "auto or one of " + join(known),
                 str("'", request.backend, "' is unknown")};
  }
  return Error{ErrorKind::kUnsupported, "", request.layer.name,
               str("a backend that serves ", request.layer.scheme_name()),
               "none accepts it: " + join(trail, ", ")};
}

}  // namespace moracle
