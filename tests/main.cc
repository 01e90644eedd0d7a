// The main of every test program. It runs the tests as on a CPU with fewer instruction sets:
//
//   MORACLE_TEST_WITHOUT=avx512_bf16,amx_int8,amx_bf16 kernels_test
//
// With --only-if-masked it skips them where the mask takes nothing from this CPU: the same tests
// run without a mask as well.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "oracle/machine/masked_isa.h"
#include "test_mask.h"

namespace {

constexpr const char* kVariable = "MORACLE_TEST_WITHOUT";
constexpr int kWrongMask = 2, kSkipped = 77;

moracle::Isa mask = moracle::Isa::kNone;

}  // namespace

moracle::Isa moracle::testing::test_mask() {
  return mask;
}

int main(int argc, char** argv) {
  const bool only_if_masked = std::any_of(
      argv, argv + argc, [](std::string_view arg) { return arg == "--only-if-masked"; });
  // Detection starts OpenCL, which takes 30 ms: most processes run one test that needs no machine.
  const moracle::Isa whole =
      only_if_masked ? moracle::Machine::here().cpu.isa : moracle::Isa::kNone;
  if (const char* const text = std::getenv(kVariable); text != nullptr && *text != '\0') {
    const moracle::Result<moracle::Isa> without = moracle::parse_isa(text);
    if (!without) {
      std::cerr << kVariable << ": " << without.error().to_string() << "\n";
      return kWrongMask;
    }
    mask = moracle::with_dependents(*without);
    moracle::mask_isa(mask);
  }
  if (only_if_masked && (mask & whole) == moracle::Isa::kNone) {
    std::cout << "main.cc: Skipped\nthe mask takes nothing from this CPU, which has "
              << names(whole) << "\n";
    return kSkipped;
  }
  // Lists of test parameters ask for the machine here: the mask comes first.
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
