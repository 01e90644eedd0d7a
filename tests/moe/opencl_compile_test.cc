// Tests that a kernel that does not compile is an error of the layer that needs it, when the layer
// is made.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>

#include "conformance/conformance.h"
#include "moracle/device.h"
#include "moracle/moe.h"
#include "support/must.h"

namespace moracle::opencl_compile_test {
namespace {

using ::testing::HasSubstr;

/// Options that PoCL adds when it compiles. Other drivers do not know the variable.
class ExtraOptions {
 public:
  explicit ExtraOptions(const char* options) { ::setenv(kName, options, 1); }
  ~ExtraOptions() { ::unsetenv(kName); }

 private:
  static constexpr const char* kName = "POCL_EXTRA_BUILD_FLAGS";
};

TEST(OpenClCompile, LayerReportsKernelThatDoesNotCompile) {
  const auto device = open_device("opencl", 1);
  if (!device) GTEST_SKIP() << device.error().to_string();
  const Machine here = Machine::here();
  const auto gpu = std::find_if(here.gpus.begin(), here.gpus.end(), [](const GpuInfo& one) {
    return one.platform == Platform::kOpenCl;
  });
  if (!gpu->model.starts_with("pthread")) GTEST_SKIP() << "the driver is not PoCL";
  LayerSpec spec;
  spec.name = "experts";
  spec.num_experts = 2, spec.top_k = 1;
  spec.hidden_size = 64, spec.intermediate_size = 32;
  spec.scheme = {int4_static_group(32), {}};
  for (const Backend& backend : backends()) {
    if (backend.platform != Platform::kOpenCl || !backend.built()) continue;
    const Selection selection = select({.layer = spec,
                                        .max_num_tokens = 4,
                                        .backend = std::string(backend.name),
                                        .platform = Platform::kOpenCl},
                                       here);
    if (!selection.plan) continue;  // the device lacks what the backend needs
    const auto make = [&] {
      return FusedMoe::make(conformance::random_weights(spec, 1), selection, *device);
    };
    {
      const ExtraOptions broken("-D kernel=no_such_word");
      const auto moe = make();
      ASSERT_FALSE(moe) << backend.name;
      EXPECT_THAT(moe.error().file, HasSubstr(".cl")) << backend.name;
      EXPECT_THAT(moe.error().fact, HasSubstr("no_such_word")) << backend.name;
    }
    const auto moe = make();
    EXPECT_TRUE(moe) << backend.name << ": " << moe.error().to_string();
  }
}

}  // namespace
}  // namespace moracle::opencl_compile_test
