// Tests adapters of experts and linear layers on quantized models: against the same model in f32,
// and the CPU's backends against the reference.
#include <gtest/gtest.h>

#include "oracle/backend.h"
#include "quantized_adapters.h"
#include "support/model_words.h"

namespace moracle::quantized_adapters_test {
namespace {

using testing::adapted_checkpoint;
using testing::adapted_logits;
using testing::must;
using testing::relative_difference;
using testing::SyntheticCheckpoint;

class QuantizedAdapters : public ::testing::TestWithParam<const char*> {
 protected:
  QuantizedAdapters() {
    testing::write_adapter_of_all(one_, 1);
    testing::write_adapter_of_all(other_, -1);
  }
  struct Ran {
    std::array<std::vector<float>, 3> logits;  // of three sequences
    std::vector<Choice> choices;
  };
  Ran run(const SyntheticCheckpoint& checkpoint, const std::string& backend,
          ActivationPrecision activations = ActivationPrecision::kStored) {
    const Checkpoint opened = must(checkpoint.open());
    Model model = must(Model::load(opened, {.backend = testing::backend(backend),
                                            .activations = activations,
                                            .threads = 2,
                                            .adapters = {one_.path(), other_.path()}}));
    return {adapted_logits(model), model.choices()};
  }
  const testing::TemporaryFolder one_, other_;
};

TEST_P(QuantizedAdapters, EqualAdaptersOfTheSameWeightsInF32) {
  const auto quantized = adapted_checkpoint(GetParam());
  const Ran exact = run(testing::dequantized(quantized), "reference");
  const auto& want = exact.logits;
  EXPECT_GT(relative_difference(want[0], want[1]), 0.05);
  EXPECT_GT(relative_difference(want[2], want[1]), 0.05);
  EXPECT_GT(relative_difference(want[2], want[0]), 0.05);
  for (const char* backend : {"reference", "cpu", "auto"}) {
    const Ran got = run(quantized, backend, ActivationPrecision::k16Bit);
    for (size_t s = 0; s < 3; ++s) {
      EXPECT_LT(relative_difference(got.logits[s], want[s]),
                testing::logit_bound(got.choices, exact.choices))
          << backend << ", sequence " << s;
    }
  }
}

// Activations of 8 bits may round to the next code where the order of sums differs.
TEST_P(QuantizedAdapters, BackendsAgreeOnTheFilesActivations) {
  const auto quantized = adapted_checkpoint(GetParam());
  const auto want = run(quantized, "reference").logits;
  EXPECT_GT(relative_difference(want[0], want[1]), 0.05);
  for (const Backend& backend : backends()) {
    const Machine here = Machine::here();
    if (backend.platform != Platform::kCpu || !backend.built() ||
        missing(backend.isa, here.cpu.isa) != Isa::kNone)
      continue;
    const std::string name(backend.name);
    // AMX serves no router in f32, so that it is tested by being the choice of "auto".
    const auto got = run(quantized, name == "cpu-amx" ? "auto" : name).logits;
    for (size_t s = 0; s < 3; ++s)
      EXPECT_LT(relative_difference(got[s], want[s]), 0.02) << name << ", sequence " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, QuantizedAdapters, ::testing::ValuesIn(testing::kAdaptedForms),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace moracle::quantized_adapters_test
