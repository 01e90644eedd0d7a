// The main of every test program. It runs the tests as on a CPU with fewer instruction sets:
//
//   MORACLE_TEST_WITHOUT=avx512_bf16,amx_int8,amx_bf16 kernels_test
//
// With --only-if-masked it skips them where the mask takes nothing from this CPU: the same tests
// run without a mask as well.
#include <gmock/gmock.h>

#include <fnmatch.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>

#include "oracle/machine/masked_isa.h"
#include "test_mask.h"

namespace {

constexpr const char* kVariable = "MORACLE_TEST_WITHOUT";
constexpr int kWrongMask = 2, kSkipped = 77;

moracle::Isa mask = moracle::Isa::kNone;

bool matches_a_test(const std::string& pattern) {
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const std::string name = std::string(suite.name()) + "." + suite.GetTestInfo(t)->name();
      if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
    }
  }
  return false;
}

// The first pattern of the filter that selects no test of this program: most likely a test that was
// renamed. Excluded patterns come after '-'.
std::string unmatched_pattern() {
  const std::string filter = GTEST_FLAG_GET(filter);
  std::istringstream included(filter.substr(0, filter.find('-')));
  for (std::string pattern; std::getline(included, pattern, ':');) {
    if (!pattern.empty() && !matches_a_test(pattern)) return pattern;
  }
  return {};
}

}  // namespace

moracle::Isa moracle::testing::test_mask() {
  return mask;
}

int main(int argc, char** argv) {
  const bool only_if_masked = std::any_of(
      argv, argv + argc, [](std::string_view arg) { return arg == "--only-if-masked"; });
  // Detection starts OpenCL, which takes 30 ms.
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
  if (const std::string pattern = only_if_masked ? unmatched_pattern() : ""; !pattern.empty()) {
    std::cerr << "--gtest_filter: '" << pattern << "' selects no test of this program\n";
    return kWrongMask;
  }
  return RUN_ALL_TESTS();
}
