// THE table: every backend, in order of preference. A new one is a file
// kernels/<platform>/<name>.cc with its maker, and a row here. CONTRIBUTING.md walks through it.
#include "layout/layout.h"
#include "moracle/oracle.h"
#include "oracle/makers.h"

namespace moracle {

MORACLE_DECLARE_MAKER(make_cpu);
MORACLE_DECLARE_MAKER(make_reference);

namespace {

constexpr DType kCpuWeights[] = {DType::kBF16, DType::kF16,    DType::kF32,   DType::kI8,
                                 DType::kI4,   DType::kF8E4M3, DType::kF4E2M1};
constexpr DType kCpuActivations[] = {DType::kI8, DType::kF8E4M3};

const Backend kBackends[] = {
    {
        .name = "cpu",
        .platform = Platform::kCpu,
        .summary = "AVX2 or portable, chosen at run time; f32 sums, exact int8 products",
        .weights = kCpuWeights,
        .activations = kCpuActivations,
        .zero_points = true,
        .group_index = true,
        .bias = true,
        .max_integer_k = 131'070,  // of products of -128 and -128 in i32
        .layout = &kPanel16Layout,
        .make = make_cpu,
    },
    {
        .name = "reference",
        .platform = Platform::kCpu,
        .summary = "double precision from canonical weights; serves everything, slowly",
        .weights = kCpuWeights,
        .activations = kCpuActivations,
        .zero_points = true,
        .group_index = true,
        .bias = true,
        .layout = &kCanonicalLayout,
        .make = make_reference,
    },
};

}  // namespace

std::span<const Backend> backends() {
  return kBackends;
}

}  // namespace moracle
