// Tests machines as values: the detected machine and the known profiles.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/threads/thread_pool.h"
#include "moracle/oracle.h"
#include "oracle/machine/cuda_driver.h"
#include "oracle/machine/masked_isa.h"
#include "test_mask.h"

namespace moracle::machine_test {
namespace {

using ::testing::HasSubstr;

TEST(DriverForCuda, IsAbsentOrTooOld) {
  EXPECT_EQ(cuda::no_gpu(0, 13000, "insufficient"),
            "this machine has no driver for NVIDIA GPUs: libcuda.so.1 does not load");
  EXPECT_EQ(cuda::no_gpu(12080, 13010, "insufficient"),
            "the driver is for CUDA 12.8; this build needs a driver for CUDA 13 or later");
}

TEST(DriverForCuda, KeepsTheMessageOfCudaForOtherReasons) {
  EXPECT_EQ(cuda::no_gpu(13000, 13010, "cudaErrorNoDevice: no CUDA-capable device is detected"),
            "cudaErrorNoDevice: no CUDA-capable device is detected");
}

TEST(Machine, HereIsSane) {
  const Machine here = Machine::here();
  EXPECT_EQ(here.name, "here");
  EXPECT_FALSE(here.cpu.model.empty());
  EXPECT_EQ(here.cpu.threads, usable_threads());
  EXPECT_GT(here.cpu.memory_bytes, int64_t{64} << 20);
  EXPECT_LT(here.cpu.memory_bytes, int64_t{1} << 50);
}

#if defined(__x86_64__)
// The compiler's detection asks the system for fewer features, so it never finds more.
TEST(Machine, HereHasNoFeatureThatTheCompilerDenies) {
  __builtin_cpu_init();
  const Isa isa = Machine::here().cpu.isa;
  const auto has = [&](Isa bit) { return missing(bit, isa) == Isa::kNone; };
  const auto masked = [](Isa bit) { return missing(bit, testing::test_mask()) == Isa::kNone; };
  EXPECT_EQ(has(Isa::kAvx2),
            !masked(Isa::kAvx2) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(has(Isa::kAvx512), !masked(Isa::kAvx512) && __builtin_cpu_supports("avx512f") &&
                                   __builtin_cpu_supports("avx512bw") &&
                                   __builtin_cpu_supports("avx512vl") &&
                                   __builtin_cpu_supports("avx512dq"));
  EXPECT_EQ(has(Isa::kAvx512Vnni),
            !masked(Isa::kAvx512Vnni) && has(Isa::kAvx512) && __builtin_cpu_supports("avx512vnni"));
}
#endif

TEST(Machine, HereDoesNotChange) {
  EXPECT_EQ(Machine::here().cpu.isa, Machine::here().cpu.isa);
  EXPECT_EQ(Machine::find("here")->cpu.model, Machine::here().cpu.model);
}

TEST(Machine, KnownMachinesHaveUniqueNamesAndFullDescriptions) {
  std::set<std::string> names = {"here"};
  for (const Machine& machine : Machine::known()) {
    EXPECT_TRUE(names.insert(machine.name).second) << machine.name;
    EXPECT_FALSE(machine.cpu.model.empty()) << machine.name;
    EXPECT_GE(machine.cpu.threads, 1) << machine.name;
    EXPECT_GE(machine.cpu.memory_bytes, int64_t{1} << 30) << machine.name;
    for (const GpuInfo& gpu : machine.gpus) {
      EXPECT_NE(gpu.platform, Platform::kCpu) << machine.name;
      EXPECT_FALSE(gpu.model.empty()) << machine.name;
      EXPECT_GE(gpu.memory_bytes, int64_t{1} << 30) << machine.name;
      EXPECT_EQ(gpu.capability > 0, gpu.platform == Platform::kCuda) << machine.name;
      EXPECT_EQ(gpu.max_allocation_bytes > 0, gpu.platform == Platform::kOpenCl) << machine.name;
      EXPECT_LE(gpu.max_allocation_bytes, gpu.memory_bytes) << machine.name;
    }
  }
}

// A feature implies all features that it builds on.
TEST(Machine, KnownMachinesHavePossibleInstructionSets) {
  for (const Machine& machine : Machine::known()) {
    const auto has = [&](Isa bit) { return missing(bit, machine.cpu.isa) == Isa::kNone; };
    EXPECT_LE(has(Isa::kAvx512), has(Isa::kAvx2)) << machine.name;
    for (Isa bit : {Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAvx512Fp16}) {
      EXPECT_LE(has(bit), has(Isa::kAvx512)) << machine.name;
    }
    EXPECT_EQ(has(Isa::kAmxInt8), has(Isa::kAmxBf16)) << machine.name;
  }
}

TEST(Machine, IsFoundByName) {
  for (const Machine& machine : Machine::known()) {
    const auto found = Machine::find(machine.name);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->name, machine.name);
    EXPECT_EQ(found->cpu.isa, machine.cpu.isa);
    EXPECT_EQ(found->gpus.size(), machine.gpus.size());
  }
}

TEST(Machine, UnknownNameListsKnownMachines) {
  for (const std::string unknown : {"", "H200", "h200 ", "h2000", "laptop"}) {
    const auto found = Machine::find(unknown);
    ASSERT_FALSE(found) << unknown;
    EXPECT_EQ(found.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(found.error().fact, HasSubstr("'" + unknown + "'"));
    EXPECT_THAT(found.error().need, HasSubstr("here"));
    for (const Machine& machine : Machine::known()) {
      EXPECT_THAT(found.error().need, HasSubstr(machine.name));
    }
  }
}

TEST(Isa, UsesLinuxFlagNames) {
  EXPECT_EQ(names(Isa::kNone), "none");
  EXPECT_EQ(names(Isa::kAvx2), "avx2");
  EXPECT_EQ(names(Isa::kAvx512Vnni | Isa::kAvx2), "avx2 avx512_vnni");
  EXPECT_EQ(names(static_cast<Isa>(0xff)),
            "avx2 avx_vnni avx512 avx512_vnni avx512_bf16 avx512_fp16 amx_int8 amx_bf16");
}

TEST(Isa, NamesRoundTrip) {
  for (uint32_t bit = 1; bit <= 0x80; bit <<= 1) {
    const auto isa = static_cast<Isa>(bit);
    const auto parsed = parse_isa(names(isa));
    ASSERT_TRUE(parsed) << names(isa);
    EXPECT_EQ(*parsed, isa);
  }
  const auto both = parse_isa("amx_int8,avx2");
  ASSERT_TRUE(both);
  EXPECT_EQ(*both, Isa::kAmxInt8 | Isa::kAvx2);
  for (const char* text : {"", "avx9", "avx2,", ",avx2", "avx2,,avx512", "avx2 avx512", "AVX2"})
    EXPECT_FALSE(parse_isa(text)) << text;
}

TEST(Isa, MaskRemovesDependentSets) {
  EXPECT_EQ(with_dependents(Isa::kNone), Isa::kNone);
  EXPECT_EQ(with_dependents(Isa::kAvx2), static_cast<Isa>(0xff));
  EXPECT_EQ(missing(static_cast<Isa>(0xff), with_dependents(Isa::kAvx512)),
            Isa::kAvx2 | Isa::kAvxVnni);
  for (Isa leaf : {Isa::kAvxVnni, Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAvx512Fp16,
                   Isa::kAmxInt8, Isa::kAmxBf16})
    EXPECT_EQ(with_dependents(leaf), leaf) << names(leaf);
}

TEST(Isa, MissingIsNeededMinusPresent) {
  EXPECT_EQ(missing(Isa::kAvx2 | Isa::kAmxInt8, Isa::kAvx2 | Isa::kAvx512), Isa::kAmxInt8);
  EXPECT_EQ(missing(Isa::kNone, Isa::kNone), Isa::kNone);
  EXPECT_EQ(missing(Isa::kAvx2, static_cast<Isa>(0xff)), Isa::kNone);
}

}  // namespace
}  // namespace moracle::machine_test
