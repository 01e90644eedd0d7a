// The rules. Each rule compares one column of a row with the request and the machine.
// docs/oracle.md explains how a user can satisfy each rule.
#include "oracle/rules/rules.h"

#include <vector>

namespace moracle {

std::span<const Rule> rules() {
  static const std::vector<Rule> kAll = [] {
    std::vector<Rule> all;
    for (std::span<const Rule> some :
         {layer_spec_rules(), machine_rules(), layer_rules(), request_rules()})
      all.insert(all.end(), some.begin(), some.end());
    return all;
  }();
  return kAll;
}

}  // namespace moracle
