// Tests the measured rates of multiply instructions, and the choices that follow from given rates.
#include "oracle/rates/rates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "oracle/fake_rows.h"

namespace moracle::rates_test {
namespace {

using ::testing::HasSubstr;

constexpr Isa kZen4 = Isa::kAvx2 | Isa::kAvx512 | Isa::kAvx512Vnni | Isa::kAvx512Bf16;

// A machine whose rates are given; 0: unknown.
Machine machine_with(double f32, double bf16, Isa isa = kZen4) {
  Machine machine;
  machine.cpu = {"a CPU", isa, 2, int64_t{1} << 34};
  if (f32 > 0) machine.cpu.rates.push_back({"f32 avx512", f32});
  if (bf16 > 0) machine.cpu.rates.push_back({"bf16 avx512_bf16", bf16});
  return machine;
}

Plan plan_on(const Machine& machine, const char* scheme, bool bf16_activations = true) {
  const Request request = {.layer = fake::layer(*parse_scheme(scheme)),
                           .bf16_activations = bf16_activations,
                           .backend = "cpu-avx512"};
  return *select(request, machine).plan;
}

TEST(Rates, MeasuredOncePerProcessForFeaturesOfCpu) {
  const CpuInfo cpu = Machine::here().cpu, again = Machine::here().cpu;
  ASSERT_EQ(cpu.rates.size(), again.rates.size());
  std::set<std::string_view> seen;
  for (size_t i = 0; i < cpu.rates.size(); ++i) {
    EXPECT_EQ(cpu.rates[i].ops_per_second, again.rates[i].ops_per_second) << cpu.rates[i].name;
    EXPECT_GT(cpu.rates[i].ops_per_second, 1e6) << cpu.rates[i].name;
    EXPECT_THAT(names(cpu.isa),
                HasSubstr(std::string(cpu.rates[i].name.substr(cpu.rates[i].name.find(' ') + 1))));
    EXPECT_TRUE(seen.insert(cpu.rates[i].name).second) << cpu.rates[i].name;
  }
  EXPECT_EQ(seen.contains("f32 avx2"), missing(Isa::kAvx2, cpu.isa) == Isa::kNone);
  EXPECT_TRUE(measured_rates(Isa::kNone).empty());
}

TEST(Rates, ChooseBf16FromItsMultipleOfF32On) {
  EXPECT_FALSE(choose_bf16(machine_with(100e9, 50e9).cpu).bf16);  // Sapphire Rapids
  EXPECT_FALSE(choose_bf16(machine_with(100e9, 139e9).cpu).bf16);
  EXPECT_TRUE(choose_bf16(machine_with(100e9, 141e9).cpu).bf16);
  EXPECT_TRUE(choose_bf16(machine_with(114e9, 230e9).cpu).bf16);  // Zen 4
  EXPECT_THAT(choose_bf16(machine_with(114e9, 230e9).cpu).reason,
              HasSubstr("avx512_bf16 makes 230 GFLOP/s per thread here, f32 avx512 114"));
}

TEST(Rates, DecideOnAmxMachineToo) {
  const Isa amx = kZen4 | Isa::kAmxInt8 | Isa::kAmxBf16;
  EXPECT_TRUE(choose_bf16(machine_with(100e9, 200e9, amx).cpu).bf16);
  EXPECT_FALSE(choose_bf16(machine_with(100e9, 50e9, amx).cpu).bf16);
}

TEST(Rates, LeaveChoiceToFeaturesWhereUnknown) {
  EXPECT_TRUE(choose_bf16(machine_with(0, 0).cpu).bf16);
  EXPECT_TRUE(choose_bf16(machine_with(0, 200e9).cpu).bf16);
  EXPECT_FALSE(choose_bf16(machine_with(0, 0, kZen4 | Isa::kAmxBf16).cpu).bf16);
  EXPECT_EQ(choose_bf16(machine_with(0, 0).cpu).reason, "");
}

TEST(Rates, OfMissingInstructionChooseF32WithoutReason) {
  const Isa isa = Isa::kAvx2 | Isa::kAvx512 | Isa::kAvx512Vnni;
  const Bf16Choice choice = choose_bf16(machine_with(100e9, 200e9, isa).cpu);
  EXPECT_FALSE(choice.bf16);
  EXPECT_EQ(choice.reason, "");
}

bool in_bf16(const Plan& plan) {
  const PlannedKernel& last = plan.matrices[0].kernel->kernels.back();
  return std::get<CpuDotForm>(last.form).isa == cpu::DotIsa::kAvx512Bf16;
}

TEST(Rates, DecideKernelsOfPlanWithReason) {
  for (const char* scheme : {"int4-w4a16-g128", "bf16", "fp8-w8a8-block128x128"}) {
    SCOPED_TRACE(scheme);
    const Plan fast = plan_on(machine_with(100e9, 200e9), scheme),
               slow = plan_on(machine_with(100e9, 50e9), scheme);
    for (const Plan* plan : {&fast, &slow}) {
      const bool bf16 = plan == &fast;
      EXPECT_EQ(in_bf16(*plan), bf16);
      EXPECT_TRUE(
          plan->matrices[0].kernels.back().name.ends_with(bf16 ? " avx512_bf16" : " avx512"));
      EXPECT_THAT(describe(*plan), HasSubstr(bf16 ? "\n      bf16 products: avx512_bf16 makes 200"
                                                  : "\n      f32 products: avx512_bf16 makes 50"));
    }
  }
}

// Parts of int8 need fewer instructions than bf16 for one or two rows, and round less.
TEST(Rates, LeaveOneAndTwoRowsOfInt4InLimbsOfInt8) {
  const Machine machine = machine_with(100e9, 200e9);
  const std::vector<KernelUse> kernels = plan_on(machine, "int4-w4a16-g128").matrices[0].kernels;
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].name, "i4 codes, floats in three i8 limbs, exact sums, avx512_vnni");
  EXPECT_EQ(kernels[0].range.to_rows, 2);
  EXPECT_EQ(kernels[1].name, "i4 codes, bf16 products, f32 sums, avx512_bf16");
  EXPECT_EQ(kernels[1].range.from_rows, 3);
  const Request request = {.layer = fake::layer(*parse_scheme("int4-w4a16-g128")),
                           .deterministic = true,
                           .bf16_activations = true,
                           .backend = "cpu-avx512"};
  EXPECT_EQ(select(request, machine).plan->matrices[0].kernels.size(), 1u);
}

TEST(Rates, ChangeNoPlanThatMultipliesInOneTypeOnly) {
  for (const char* scheme : {"int8-w8a8", "int4-w4a8-g128"}) {
    const Plan fast = plan_on(machine_with(100e9, 200e9), scheme);
    EXPECT_FALSE(in_bf16(fast)) << scheme;
    EXPECT_EQ(describe(fast), describe(plan_on(machine_with(100e9, 50e9), scheme))) << scheme;
  }
  const Plan floats = plan_on(machine_with(100e9, 200e9), "int4-w4a16-g128", false);
  EXPECT_FALSE(in_bf16(floats));
  EXPECT_TRUE(reasons(floats.matrices).empty());
}

}  // namespace
}  // namespace moracle::rates_test
