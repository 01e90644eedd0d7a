#include "selection_text.h"

#include <nanobind/stl/string.h>

namespace moracle::python {

namespace nb = nanobind;

namespace {

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
  const nb::object parsed = nb::module_::import_("json").attr("loads")(explain_json(selection));
  return nb::cast<nb::dict>(parsed);
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
    if (verdict.accepted()) reasons = escaped(summary(*verdict.backend));
    const std::string name = escaped(moracle::name(*verdict.backend));
    html += "<tr><td>" + (chosen ? "<b>" + name + "</b>" : name) + "</td><td>" +
            (chosen               ? "chosen"
             : verdict.accepted() ? "yes"
                                  : "no") +
            "</td><td>" + reasons + "</td></tr>";
  }
  return html + "</tbody></table>";
}

}  // namespace moracle::python
