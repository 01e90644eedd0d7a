// Tests activation functions on the CPU device against their definitions in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/ops.h"
#include "moracle/device.h"

namespace moracle::activate_test {
namespace {

using ::testing::HasSubstr;

constexpr double kU = 0x1p-24;
constexpr double kPi = 3.14159265358979323846;

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// As the header writes them.
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

class ActivateTest : public ::testing::TestWithParam<ActivationSpec> {};

TEST_P(ActivateTest, MatchesDefinitionAndPadsWithZeros) {
  const ActivationSpec& spec = GetParam();
  const int64_t rows = 13, size = 37, padded = 40;
  const int64_t cols = is_gated(spec.function) ? 2 * size : size;
  std::mt19937 random(42);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> in(rows * cols);
  for (float& x : in) x = normal(random);
  // Far out, at the limits, and where exponentials end.
  const float special[] = {0, 200, -200, 7, -7, 7.5f, -88.5f, 1e-30f};
  std::copy(std::begin(special), std::end(special), in.begin());
  if (cols > size) std::copy(std::begin(special), std::end(special), in.begin() + cols + size);
  for (int threads : {1, 3}) {
    auto device = *open_device("cpu", threads);
    std::vector<float> out(rows * padded, 9.0f);
    ASSERT_TRUE(device->ops().activate(spec, size, Matrix::f32(in.data(), rows, cols),
                                       Matrix::f32(out.data(), rows, padded), {}));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < size; ++i) {
        const double g = in[r * cols + i], u = cols > size ? in[r * cols + size + i] : 1;
        const double want = definition(spec, g, u);
        // 1 + tanh cancels in double too.
        const double lost = name(spec.function).find("tanh") != std::string::npos ? 0x1p-52 : 0;
        // The argument of the exponential carries its own rounding.
        const double argument = std::min(std::fabs(g) * std::max(1.0, g * g), 200.0);
        EXPECT_NEAR(out[r * padded + i], want,
                    (8 + 4 * argument) * kU * std::fabs(want) + 0x1p-126 * (1 + std::fabs(u)) +
                        lost * std::fabs(g * u))
            << "g " << g << ", u " << u;
      }
      for (int64_t i = size; i < padded; ++i) EXPECT_EQ(out[r * padded + i], 0);
    }
  }
}

TEST(Activate, RejectsMissingLimitOfFormula) {
  std::vector<float> in(8), out(4);
  auto device = *open_device("cpu", 1);
  auto refused = [&](ActivationSpec spec) {
    const Status status = device->ops().activate(spec, 4, Matrix::f32(in.data(), 1, 8),
                                                 Matrix::f32(out.data(), 1, 4), {});
    return status ? std::string() : status.error().to_string();
  };
  for (Activation function : {Activation::kSwigluOai, Activation::kSwigluStep}) {
    EXPECT_THAT(refused({.function = function}), HasSubstr("a limit above 0; it is 0"));
    EXPECT_EQ(refused({.function = function, .limit = 7}), "");
  }
  EXPECT_THAT(refused({.limit = NAN}), HasSubstr("nan"));
  EXPECT_THAT(refused({.limit = -1}), HasSubstr("-1"));
}

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

std::string test_name(const ::testing::TestParamInfo<ActivationSpec>& info) {
  return std::string(name(info.param.function)) + (info.param.limit > 0 ? "_limited" : "");
}

using A = Activation;
INSTANTIATE_TEST_SUITE_P(Every, ActivateTest,
                         ::testing::Values(ActivationSpec{A::kSilu}, ActivationSpec{.limit = 7},
                                           ActivationSpec{A::kGelu}, ActivationSpec{A::kGeluTanh},
                                           ActivationSpec{A::kRelu2},
                                           ActivationSpec{.function = A::kSwigluOai, .limit = 7},
                                           ActivationSpec{A::kSwigluStep, 0, 0, 7},
                                           ActivationSpec{A::kSiluNoMul},
                                           ActivationSpec{A::kGeluNoMul},
                                           ActivationSpec{A::kGeluTanhNoMul},
                                           ActivationSpec{A::kRelu2NoMul}),
                         test_name);

}  // namespace
}  // namespace moracle::activate_test
