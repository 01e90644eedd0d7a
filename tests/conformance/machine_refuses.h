// Finds the rows that cannot run on this machine, by the rules of the oracle.
#pragma once

#include <algorithm>

#include "conformance/conformance.h"
#include "oracle/backend.h"
#include "oracle/rules/rules.h"

namespace moracle::conformance {

/// True if a machine rule (instruction set, device) rejects the case's row here. Otherwise a
/// rejection comes from the layer.
inline bool machine_refuses(const Case& c) {
  static const Machine here = Machine::here();
  auto of_machine = [](const Reason& reason) {
    return std::any_of(machine_rules().begin(), machine_rules().end(),
                       [&](const Rule& rule) { return rule.name == reason.rule; });
  };
  const Selection selection = select(request_of(c), here);
  return std::any_of(
      selection.considered.begin(), selection.considered.end(), [&](const Verdict& verdict) {
        return verdict.backend->name == c.backend &&
               std::any_of(verdict.reasons.begin(), verdict.reasons.end(), of_machine);
      });
}

/// The expected outcome of the case if its row serves such layers.
inline Outcome::Kind served_or_refused(const Case& c) {
  return machine_refuses(c) ? Outcome::kRefused : Outcome::kPassed;
}

}  // namespace moracle::conformance
