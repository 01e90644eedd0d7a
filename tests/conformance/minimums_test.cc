// Tests minimums beside quantized activations: groups of weights that are longer, shorter or equal
// to those of the activations, and rows longer than the buffer in which codes become floats.
#include <gtest/gtest.h>

#include <vector>

#include "conformance/machine_refuses.h"
#include "oracle/backend.h"
#include "support/sample.h"

namespace moracle::conformance::minimums_test {
namespace {

std::vector<Scheme> schemes() {
  std::vector<Scheme> all;
  for (const int64_t group : {GroupShape::kAll, int64_t{32}, int64_t{640}}) {
    for (const bool four_bits : {true, false}) {
      for (const QuantKey& activation :
           {kInt8DynamicTokenSym, kFp8DynamicTokenSym, fp8_dynamic_group(32), fp8_dynamic_group(64),
            kFp8StaticTensorSym}) {
        QuantKey key = four_bits ? int4_static_group(group) : int8_static_group(group);
        key.minimums = true;
        all.push_back({key, activation});
      }
    }
  }
  return all;
}

TEST(Minimums, MatchReferenceWithEveryActivationKeyAndGroup) {
  const std::shared_ptr<Device> device = *open_device("cpu", 2);
  for (const Backend& row : backends()) {
    if (!row.built() || row.platform != Platform::kCpu) continue;
    testing::Sample sample{std::string(row.name)};
    for (const Scheme& scheme : schemes()) {
      for (const int64_t tokens : {1, 40}) {
        if (!sample.takes()) continue;
        const Case c{row.name, scheme, {2, 1300, 48, 1}, tokens};
        const Outcome outcome = run(c, device);
        ASSERT_EQ(outcome.kind, served_or_refused(c)) << outcome.message;
      }
    }
  }
}

}  // namespace
}  // namespace moracle::conformance::minimums_test
