// Tests loading one set of weights, then another, on one device and one workspace. No state of the
// first set affects the second.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/text.h"
#include "moe/layer_on_rows.h"
#include "support/must.h"

namespace moracle::loads_test {
namespace {

using testing::TokenBatch;

class Loads : public ::testing::Test {
 protected:
  /// Loads the weights of `seed` at the address of the previous ones and returns their output.
  std::vector<float> load_and_run(const std::string& row, const LayerSpec& spec, uint64_t seed) {
    const Selection selection =
        select({.layer = spec, .max_num_tokens = 9, .backend = row}, Machine::here());
    moe_.reset();
    moe_ = std::make_unique<FusedMoe>(testing::must(
        FusedMoe::make(conformance::random_weights(spec, seed), selection, workspace_)));
    return testing::output_of(*moe_, testing::random_batch(spec, 9));
  }

  std::shared_ptr<Workspace> workspace_ = std::make_shared<Workspace>(*open_device("cpu", 2));
  std::unique_ptr<FusedMoe> moe_;
};

// Loads A, then B, then A again. Each gives the output of a first load.
TEST_F(Loads, LoadingOtherWeightsInBetweenChangesNothing) {
  for (const Scheme& scheme : conformance::schemes()) {
    LayerSpec spec = testing::odd_layer(scheme);
    spec.bias = true;
    for (const std::string& row : testing::cpu_rows(spec)) {
      SCOPED_TRACE(str(row, ", ", name(scheme)));
      const std::vector<float> a = load_and_run(row, spec, 1), b = load_and_run(row, spec, 100);
      EXPECT_NE(a, b);
      EXPECT_EQ(load_and_run(row, spec, 1), a);
      const TokenBatch batch = testing::random_batch(spec, 9);
      EXPECT_EQ(testing::output_on(row, conformance::random_weights(spec, 100), batch), b);
    }
  }
}

}  // namespace
}  // namespace moracle::loads_test
