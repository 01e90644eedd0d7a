// Tests activation functions on every device against their definitions in double.
#include <algorithm>

#include "kernels/ops/device_ops.h"

namespace moracle::activate_test {
namespace {

using ::testing::HasSubstr;

constexpr double kU = 0x1p-24;
constexpr double kPi = 3.14159265358979323846;

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// The public definitions.
double definition(const ActivationSpec& a, double g, double u) {
  const double phi = 0.5 * std::erfc(-g / std::sqrt(2.0));
  const double phi_tanh = 0.5 * (1 + std::tanh(std::sqrt(2 / kPi) * (g + 0.044715 * g * g * g)));
  const double relu = std::max(g, 0.0), limit = a.limit;
  switch (a.function) {
    case Activation::kSilu:
      if (limit > 0)
        return std::min(g, limit) * sigmoid(std::min(g, limit)) * std::clamp(u, -limit, limit);
      return g * sigmoid(g) * u;
    case Activation::kGelu:
      return g * phi * u;
    case Activation::kGeluTanh:
      return g * phi_tanh * u;
    case Activation::kRelu2:
      return relu * relu * u;
    case Activation::kSwigluOai:
      return std::min(g, limit) * sigmoid(a.alpha * std::min(g, limit)) *
             (std::clamp(u, -limit, limit) + a.beta);
    case Activation::kSwigluStep:
      return std::min(g * sigmoid(g), limit) * std::clamp(u, -limit, limit);
    case Activation::kSiluNoMul:
      return g * sigmoid(g);
    case Activation::kGeluNoMul:
      return g * phi;
    case Activation::kGeluTanhNoMul:
      return g * phi_tanh;
    case Activation::kRelu2NoMul:
      return relu * relu;
  }
  return NAN;
}

struct Case {
  const char* name;
  ActivationSpec spec;
};
using A = Activation;
const Case kCases[] = {{"silu", {A::kSilu}},
                       {"silu, limit 7", {.limit = 7}},
                       {"silu, limit 0.9", {.limit = 0.9f}},
                       {"gelu", {A::kGelu}},
                       {"gelu_tanh", {A::kGeluTanh}},
                       {"relu2", {A::kRelu2}},
                       {"swigluoai, limit 7", {.function = A::kSwigluOai, .limit = 7}},
                       {"swigluoai, limit 0.9", {.function = A::kSwigluOai, .limit = 0.9f}},
                       {"swiglustep, limit 7", {A::kSwigluStep, 0, 0, 7}},
                       {"swiglustep, limit 0.9", {A::kSwigluStep, 0, 0, 0.9f}},
                       {"silu without a gate", {A::kSiluNoMul}},
                       {"gelu without a gate", {A::kGeluNoMul}},
                       {"gelu_tanh without a gate", {A::kGeluTanhNoMul}},
                       {"relu2 without a gate", {A::kRelu2NoMul}}};

class Activate : public testing::DeviceOpsTest {
 protected:
  void check(const ActivationSpec& spec, int64_t rows, int64_t size, int64_t padded) {
    const int64_t cols = is_gated(spec.function) ? 2 * size : size;
    std::vector<float> in = normal(rows * cols, 4);
    // Large magnitudes, the limits, and inputs at which exponentials overflow or underflow.
    const float special[] = {0, 200, -200, 7, -7, 7.5f, -88.5f, 1e-30f};
    std::copy(std::begin(special), std::end(special), in.begin());
    if (cols > size) std::copy(std::begin(special), std::end(special), in.begin() + cols + size);
    in = rounded(std::move(in));
    const Matrix out_matrix = blank(rows, padded);
    expect_done(ops().activate(spec, size, matrix(in, rows, cols), out_matrix, {}));
    const std::vector<float> out = floats(out_matrix);
    // 1 + tanh suffers cancellation in double, too.
    const double lost = name(spec.function).find("tanh") != std::string::npos ? 0x1p-52 : 0;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < size; ++i) {
        const double g = in[r * cols + i], u = cols > size ? in[r * cols + size + i] : 1;
        const double want = definition(spec, g, u);
        // The argument of the exponential carries its own rounding.
        const double argument = std::min(std::fabs(g) * std::max(1.0, g * g), 200.0);
        ASSERT_NEAR(out[r * padded + i], want,
                    bound(want, (8 + 4 * argument) * kU * std::fabs(want) +
                                    0x1p-126 * (1 + std::fabs(u)) + lost * std::fabs(g * u)))
            << "g " << g << ", u " << u;
      }
      for (int64_t i = size; i < padded; ++i) ASSERT_EQ(out[r * padded + i], 0);
    }
  }
};

TEST_P(Activate, MatchesDefinitionAndPadsWithZeros) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    check(c.spec, 13, 37, 40);
    check(c.spec, 6, 333, 336);
  }
}

TEST_P(Activate, RejectsMissingLimitOfFormula) {
  const Matrix in = matrix(std::vector<float>(8), 1, 8), out = blank(1, 4);
  auto refused = [&](const ActivationSpec& spec) {
    const Status status = ops().activate(spec, 4, in, out, {});
    return status ? std::string() : status.error().to_string();
  };
  for (Activation function : {Activation::kSwigluOai, Activation::kSwigluStep}) {
    EXPECT_THAT(refused({.function = function}), HasSubstr("a limit above 0; it is 0"));
    EXPECT_EQ(refused({.function = function, .limit = 7}), "");
  }
  EXPECT_THAT(refused({.limit = NAN}), HasSubstr("nan"));
  EXPECT_THAT(refused({.limit = -1}), HasSubstr("-1"));
}

MORACLE_ON_EVERY_DEVICE(Activate);

TEST(ActivationNames, RoundTrip) {
  for (int i = 0; i <= static_cast<int>(Activation::kRelu2NoMul); ++i) {
    const auto activation = static_cast<Activation>(i);
    EXPECT_EQ(*parse_activation(name(activation)), activation);
    EXPECT_EQ(is_gated(activation), !name(activation).ends_with("_no_mul"));
  }
  EXPECT_EQ(*parse_activation("gelu_pytorch_tanh"), Activation::kGeluTanh);
  EXPECT_EQ(*parse_activation("swish"), Activation::kSilu);
  for (const char* unknown : {"", "tanh", "SiLU", "quick_gelu"}) {
    const auto parsed = parse_activation(unknown);
    ASSERT_FALSE(parsed) << unknown;
    EXPECT_THAT(parsed.error().need, HasSubstr("swigluoai"));
  }
}

}  // namespace
}  // namespace moracle::activate_test
