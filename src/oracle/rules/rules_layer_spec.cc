// The rule about specs that describe no layer: a plan would divide by their sizes or overflow.
#include "base/text.h"
#include "oracle/rules/rules.h"

namespace moracle {
namespace rules_layer_spec {
namespace {

std::optional<Reason> refuse_layer_spec(const Backend&, const Request& r, const Machine&) {
  const Status valid = check(r.layer);
  if (valid) return {};
  return object(str(valid.error().place, ": ", valid.error().need), valid.error().fact);
}

constexpr Rule kRules[] = {{"layer-spec", refuse_layer_spec, true}};

}  // namespace
}  // namespace rules_layer_spec

std::span<const Rule> layer_spec_rules() {
  return rules_layer_spec::kRules;
}

}  // namespace moracle
