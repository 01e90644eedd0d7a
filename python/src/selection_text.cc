#include "selection_text.h"

#include <nanobind/stl/string.h>

namespace moracle::python {

namespace nb = nanobind;

namespace {

nb::object limit(int64_t most) {
  return most == 0 ? nb::none() : nb::cast(most);
}

nb::list matrices_list(const Plan& plan) {
  nb::list matrices;
  for (const MatrixPlan& matrix : plan.matrices) {
    nb::list kernels;
    for (const KernelUse& use : matrix.kernel.kernels) {
      nb::dict kernel;
      kernel["name"] = use.name;
      kernel["from_tokens"] = use.from_tokens;
      kernel["to_tokens"] = limit(use.to_tokens);
      kernel["from_rows"] = use.from_rows;
      kernel["to_rows"] = limit(use.to_rows);
      kernels.append(kernel);
    }
    nb::dict dict;
    dict["n"] = matrix.shape.n;
    dict["k"] = matrix.shape.k;
    dict["input_dtype"] = std::string(name(matrix.kernel.input_dtype));
    dict["product_bits"] = matrix.kernel.product_bits;
    const std::string& reason = matrix.kernel.reason;
    dict["reason"] = reason.empty() ? nb::object(nb::none()) : nb::object(nb::str(reason.c_str()));
    dict["kernels"] = kernels;
    matrices.append(dict);
  }
  return matrices;
}

nb::object plan_dict(const std::optional<Plan>& plan) {
  if (!plan) return nb::none();
  nb::dict dict;
  dict["backend"] = std::string(plan->backend->name);
  dict["layout"] = std::string(plan->layout);
  dict["weight_bytes"] = plan->weight_bytes;
  dict["workspace_bytes"] = plan->workspace_bytes;
  dict["scratch_bytes"] = plan->scratch_bytes;
  dict["max_num_tokens"] = plan->max_num_tokens;
  dict["in_this_build"] = plan->backend->built();
  dict["matrices"] = matrices_list(*plan);
  return dict;
}

nb::dict verdict_dict(const Verdict& verdict) {
  nb::list reasons, tuned;
  for (const Reason& reason : verdict.reasons) {
    nb::dict dict;
    dict["rule"] = std::string(reason.rule);
    dict["need"] = reason.need;
    dict["have"] = reason.have;
    reasons.append(dict);
  }
  for (const TunedTime& time : verdict.tuned) {
    nb::dict dict;
    dict["num_tokens"] = time.num_tokens;
    dict["us_median"] = time.us;
    tuned.append(dict);
  }
  nb::dict dict;
  dict["backend"] = std::string(verdict.backend->name);
  dict["accepted"] = verdict.accepted();
  dict["in_this_build"] = verdict.backend->built();
  dict["reasons"] = reasons;
  dict["tuned"] = tuned;
  dict["moved_back"] = verdict.moved_back ? nb::cast(std::string(verdict.moved_back->reason))
                                          : nb::object(nb::none());
  return dict;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

}  // namespace

nb::dict to_dict(const Selection& selection) {
  nb::list considered;
  for (const Verdict& verdict : selection.considered) considered.append(verdict_dict(verdict));
  nb::dict dict;
  dict["layer"] = describe(selection.request.layer);
  dict["scheme"] = name(selection.request.layer.scheme);
  dict["chosen"] = selection.plan ? nb::cast(std::string(selection.plan->backend->name))
                                  : nb::object(nb::none());
  dict["weight_bytes"] =
      selection.plan ? nb::cast(selection.plan->weight_bytes) : nb::object(nb::none());
  dict["considered"] = considered;
  dict["plan"] = plan_dict(selection.plan);
  return dict;
}

std::string to_html(const Selection& selection) {
  std::string html = "<table><caption>" + escaped(describe(selection.request.layer)) +
                     "</caption><thead><tr><th>backend</th><th>serves</th><th>reasons</th></tr>"
                     "</thead><tbody>";
  for (const Verdict& verdict : selection.considered) {
    const bool chosen = selection.plan && selection.plan->backend == verdict.backend;
    std::string reasons;
    for (const Reason& reason : verdict.reasons) {
      reasons += (reasons.empty() ? "" : "<br>") + escaped(reason.rule) + ": needs " +
                 escaped(reason.need) + "; " + escaped(reason.have);
    }
    if (verdict.accepted()) reasons = escaped(verdict.backend->summary);
    const std::string name = escaped(verdict.backend->name);
    html += "<tr><td>" + (chosen ? "<b>" + name + "</b>" : name) + "</td><td>" +
            (chosen               ? "chosen"
             : verdict.accepted() ? "yes"
                                  : "no") +
            "</td><td>" + reasons + "</td></tr>";
  }
  return html + "</tbody></table>";
}

}  // namespace moracle::python
