// Tests which rows a device passes, per architecture. The devices are made up from the properties
// that the gates read, so no hardware is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "conformance/conformance.h"
#include "kernels/cuda/cuda_cublaslt_plan.h"
#include "kernels/cuda/planned_tokens.h"
#include "oracle/fake_rows.h"
#include "oracle/machine/libraries.h"

namespace moracle::gates_test {
namespace {

using Names = std::vector<std::string>;

const Scheme kInt8{kInt8StaticChannelSym, kInt8DynamicTokenSym};
const Scheme kFp8{kFp8StaticChannelSym, kFp8DynamicTokenSym};
const Scheme kInt4{int4_static_group(128), {}};

/// Rows that serve a small layer, few tokens, on this machine and platform.
Names serving(const Machine& machine, Platform platform, const Scheme& scheme) {
  const Request request{.layer = fake::layer(scheme), .max_num_tokens = 16, .platform = platform};
  Names names;
  for (const Verdict& verdict : select(request, machine).considered) {
    if (verdict.accepted()) names.emplace_back(verdict.backend->name);
  }
  return names;
}

Machine with_gpu(int capability) {
  Machine machine{"fake", {"a CPU", Isa::kNone, 1, int64_t{1} << 36}, {}};
  machine.gpus.push_back({Platform::kCuda, 0, "a GPU", capability, int64_t{1} << 36, 227 * 1024});
  machine.every_platform = true;
  return machine;
}

Machine with_opencl(GpuFeature features) {
  Machine machine{"fake", {"a CPU", Isa::kNone, 1, int64_t{1} << 36}, {}};
  machine.gpus.push_back(
      {Platform::kOpenCl, 0, "a GPU", 0, int64_t{1} << 36, 128 * 1024, features});
  machine.every_platform = true;
  return machine;
}

Machine with_isa(Isa isa) {
  return {"fake", {"a CPU", isa, 1, int64_t{1} << 36}, {}};
}

// The reference needs 7.5, tensor-core rows 8.0, wgmma exactly 9.0. Codes of fp8 are multiplied
// as f16, so no row needs the fp8 products of 8.9.
TEST(Gates, CudaGatesFollowComputeCapability) {
  const Names none, reference = {"cuda-reference"}, tensor = {"cuda-sm80", "cuda-reference"},
                    hopper = {"cuda-sm90", "cuda-sm80", "cuda-reference"};
  const struct {
    int capability;
    Names int8, fp8, int4;
  } expected[] = {
      {70, none, none, none},        {75, reference, reference, reference},
      {80, tensor, tensor, tensor},  {86, tensor, tensor, tensor},
      {89, tensor, tensor, tensor},  {90, hopper, hopper, hopper},
      {100, tensor, tensor, tensor}, {120, tensor, tensor, tensor},
  };
  for (const auto& want : expected) {
    SCOPED_TRACE(want.capability);
    const Machine machine = with_gpu(want.capability);
    EXPECT_EQ(serving(machine, Platform::kCuda, kInt8), want.int8);
    EXPECT_EQ(serving(machine, Platform::kCuda, kFp8), want.fp8);
    EXPECT_EQ(serving(machine, Platform::kCuda, kInt4), want.int4);
  }
}

// Layer, need and library of a row for dense matrices: what each rejects, and which row serves
// then.
TEST(Gates, CublasLtServesDenseBf16LayersWithItsLibrary) {
  const LayerSpec linear{.name = "lm_head",
                         .linear = true,
                         .hidden_size = 256,
                         .intermediate_size = 128,
                         .scheme = {kBF16Weight, {}}};
  Machine machine = with_gpu(90);
  machine.libraries = Library::kCublasLt;
  const auto chosen = [&](const LayerSpec& layer, bool deterministic = false) {
    const Request request{
        .layer = layer, .deterministic = deterministic, .platform = Platform::kCuda};
    const Selection selection = select(request, machine);
    std::string text(selection.plan ? selection.plan->backend->name : "none");
    for (const Reason& reason : fake::verdict(selection, "cuda-cublaslt")->reasons)
      text += str(", ", reason.rule, ": needs ", reason.need, "; ", reason.have);
    return text;
  };
  EXPECT_EQ(chosen(linear), "cuda-cublaslt");
  LayerSpec other = linear;
  other.bias = true;
  EXPECT_EQ(chosen(other), "cuda-cublaslt");
  EXPECT_EQ(chosen(linear, true),
            "cuda-sm90, deterministic: needs results that may depend on the other tokens in the "
            "batch; batch-invariant results are requested");
  other.intermediate_size = 132;
  EXPECT_EQ(chosen(other),
            "cuda-sm90, shape: needs hidden and intermediate sizes that are multiples of 8; they "
            "are 256 and 132");
  EXPECT_EQ(chosen(fake::layer(kBF16Weight)),
            "cuda-sm90, experts: needs a linear layer; the layer has experts of two matrices");
  other = linear;
  other.scheme = kInt4;
  EXPECT_EQ(chosen(other), "cuda-sm90, weights: needs weights in bf16; the layer's weights are i4");
  machine.libraries = Library::kNone;
  EXPECT_EQ(chosen(linear), "cuda-sm90, library: needs the library cuBLASLt; it was not found");
}

// Many tokens of a linear layer in fp8 blocks go to the library, if it is new enough and multiplies
// the layer's sizes.
TEST(Gates, CublasLtMultipliesManyTokensInFp8Blocks) {
  LayerSpec linear{.name = "q_proj",
                   .linear = true,
                   .hidden_size = 256,
                   .intermediate_size = 384,
                   .scheme = {kFp8Static128BlockSym, kFp8Dynamic128Sym}};
  Machine machine = with_gpu(90);
  const auto from = [&](const LayerSpec& layer, bool deterministic = false) {
    const Selection selection = select({.layer = layer,
                                        .max_num_tokens = 4096,
                                        .deterministic = deterministic,
                                        .backend = "cuda-sm90",
                                        .platform = Platform::kCuda},
                                       machine);
    if (!selection.plan) return int64_t{-1};
    const auto tokens = cuda::planned_tokens(*selection.plan->matrices[0].kernel,
                                             CudaForm::Kernel::kCublasLt, false);
    return tokens ? tokens->first : 0;
  };
  machine.libraries = Library::kCublasLt;
  EXPECT_EQ(from(linear), 0);
  machine.libraries = Library::kCublasLt | kCublasLtBlocks;
  EXPECT_EQ(from(linear), cuda::kLeastCublasLtBlockTokens);
  EXPECT_EQ(from(linear, true), 0);
  LayerSpec other = linear;
  other.bias = true;
  EXPECT_EQ(from(other), 0);
  other = linear;
  other.intermediate_size = 392;
  EXPECT_EQ(from(other), 0);
  other = linear;
  other.scheme = {kFp8StaticChannelSym, kFp8DynamicTokenSym};
  EXPECT_EQ(from(other), 0);
}

// Ampere has no instruction for fp8: tensor cores multiply its codes as f16, in the stored scheme.
TEST(Gates, Fp8ActivationsOnAmpereRunOnTensorCoresAsF16) {
  const Scheme stored[] = {kFp8,
                           {kFp8StaticTensorSym, kFp8StaticTensorSym},
                           {kFp8Static128BlockSym, kFp8Dynamic128Sym},
                           {kMxfp8Static, kMxfp8Dynamic}};
  for (const Scheme& scheme : stored) {
    for (const bool linear : {false, true}) {
      SCOPED_TRACE(str(name(scheme), linear ? ", linear" : ""));
      Request request{.layer = fake::layer(scheme), .platform = Platform::kCuda};
      request.layer.linear = linear;
      if (linear) request.layer.num_experts = request.layer.top_k = 1;
      const Selection selection = select(request, with_gpu(80));
      ASSERT_TRUE(selection.plan);
      EXPECT_EQ(selection.plan->backend->name, "cuda-sm80");
      EXPECT_EQ(selection.plan->layer.scheme, scheme);
      for (const MatrixPlan& matrix : selection.plan->matrices)
        for (const KernelUse& use : matrix.kernels)
          EXPECT_THAT(use.name, ::testing::HasSubstr("f16 products"));
    }
  }
}

// 4-bit weights become f16 or bf16, and for many tokens on Hopper e4m3, where the scales of 128
// columns allow it. Otherwise the codes of the activations become bf16.
TEST(Gates, Fp8ActivationsWith4BitWeightsRunOnTensorCores) {
  const std::pair<QuantKey, const char*> weights[] = {
      {int4_static_group(128), "fp8 x fp8"},
      {int4_static_group(GroupShape::kAll), "fp8 x fp8"},
      {kMxfp4Static, "fp8 x fp8"},
      {int4_static_group(32), "bf16 products"},
      {int4_static_group(16), "two bf16 of a weight"},
      {kNvfp4Static, "bf16 products"}};
  for (const auto& [key, many_on_hopper] : weights) {
    const Scheme scheme{key, kFp8DynamicTokenSym};
    SCOPED_TRACE(name(scheme));
    Request request{.layer = fake::layer(scheme), .platform = Platform::kCuda};
    request.max_num_tokens = 8192;
    for (const int capability : {80, 90}) {
      const Selection selection = select(request, with_gpu(capability));
      ASSERT_TRUE(selection.plan);
      EXPECT_EQ(selection.plan->backend->name, capability == 80 ? "cuda-sm80" : "cuda-sm90");
      for (const MatrixPlan& matrix : selection.plan->matrices) {
        EXPECT_THAT(matrix.kernels.front().name, ::testing::HasSubstr("f16 products"));
        EXPECT_THAT(matrix.kernels.back().name,
                    ::testing::HasSubstr(capability == 90 ? many_on_hopper : "f16 products"));
      }
    }
  }
}

// Tensor cores do not multiply fp8 by int8: a rule of the table states that.
TEST(Gates, Fp8ActivationsWithInt8WeightsNeedFloatRows) {
  const Scheme scheme{int8_static_group(128), kFp8DynamicTokenSym};
  const Request request{.layer = fake::layer(scheme), .platform = Platform::kCuda};
  const Selection selection = select(request, with_gpu(90));
  const Verdict* const refused = fake::verdict(selection, "cuda-sm80");
  ASSERT_TRUE(refused != nullptr && refused->reasons.size() == 1);
  EXPECT_EQ(refused->reasons[0].rule, "products");
  EXPECT_THAT(refused->reasons[0].need, ::testing::HasSubstr("(activations=16bit would serve)"));
  EXPECT_THAT(refused->reasons[0].have, ::testing::HasSubstr("f8_e4m3 x i8"));
  const Verdict* const reference = fake::verdict(selection, "cuda-reference");
  ASSERT_TRUE(reference != nullptr);
  EXPECT_TRUE(reference->accepted());
}

// Every instruction set that a row names has to be there, not most of them.
TEST(Gates, CpuGatesNeedAllInstructionSets) {
  const Isa avx512 = Isa::kAvx2 | Isa::kAvx512, vnni = avx512 | Isa::kAvx512Vnni;
  const struct {
    Isa isa;
    Names rows;
  } expected[] = {
      {Isa::kNone, {"cpu", "reference"}},
      {Isa::kAvx2, {"cpu-avx2", "cpu", "reference"}},
      {avx512, {"cpu-avx2", "cpu", "reference"}},
      {vnni, {"cpu-avx512", "cpu-avx2", "cpu", "reference"}},
      {vnni | Isa::kAmxInt8, {"cpu-avx512", "cpu-avx2", "cpu", "reference"}},
      {vnni | Isa::kAmxBf16, {"cpu-avx512", "cpu-avx2", "cpu", "reference"}},
      {vnni | Isa::kAmxInt8 | Isa::kAmxBf16,
       {"cpu-amx", "cpu-avx512", "cpu-avx2", "cpu", "reference"}},
  };
  for (const auto& want : expected) {
    for (const Scheme& scheme : {kInt8, kFp8, kInt4}) {
      EXPECT_EQ(serving(with_isa(want.isa), Platform::kCpu, scheme), want.rows)
          << names(want.isa) << ", " << name(scheme);
    }
  }
}

// OpenCL gates use the properties that a device reports, not its vendor.
TEST(Gates, OpenClGatesFollowDeviceReport) {
  const GpuFeature every = GpuFeature::kSharedPointers | GpuFeature::kAtomics64;
  const struct {
    GpuFeature features;
    Names rows;
  } expected[] = {
      {GpuFeature::kNone, {}},
      {every, {"opencl-simt", "opencl-reference"}},
      {every | GpuFeature::kMatrix, {"opencl-simt", "opencl-reference"}},
      {every | GpuFeature::kSubgroups, {"opencl-simt", "opencl-reference"}},
      {every | GpuFeature::kCpuCores, {"opencl-vectors", "opencl-simt", "opencl-reference"}},
      {every | GpuFeature::kSubgroups | GpuFeature::kMatrix,
       {"opencl-matrix", "opencl-simt", "opencl-reference"}},
  };
  for (const auto& want : expected) {
    EXPECT_EQ(serving(with_opencl(want.features), Platform::kOpenCl, kInt4), want.rows)
        << names(want.features);
  }
}

// All experts of a matrix are one allocation: a device whose limit is smaller cannot load them.
TEST(Gates, LayersNeedTheirLargestAllocation) {
  Machine machine =
      with_opencl(GpuFeature::kSharedPointers | GpuFeature::kAtomics64 | GpuFeature::kCpuCores);
  const Request request{
      .layer = fake::layer(kInt8), .max_num_tokens = 16, .platform = Platform::kOpenCl};
  for (const char* row : {"opencl-vectors", "opencl-simt", "opencl-reference"}) {
    SCOPED_TRACE(row);
    Request named = request;
    named.backend = row;
    machine.gpus[0].max_allocation_bytes = 0;
    const Plan plan = *select(named, machine).chosen();
    const int64_t largest = plan.largest_allocation();
    EXPECT_GE(largest, plan.matrices[0].weight_bytes);
    EXPECT_LT(largest, plan.weight_bytes + plan.workspace_bytes);
    machine.gpus[0].max_allocation_bytes = largest;
    EXPECT_TRUE(select(named, machine).plan);
    machine.gpus[0].max_allocation_bytes = largest - 1;
    const Selection refused = select(named, machine);
    ASSERT_FALSE(refused.plan);
    const Verdict* const verdict = fake::verdict(refused, row);
    ASSERT_EQ(verdict->reasons.size(), 1u);
    EXPECT_EQ(verdict->reasons[0].rule, "memory");
    EXPECT_THAT(verdict->reasons[0].need, ::testing::HasSubstr(" of it in one allocation"));
    EXPECT_THAT(verdict->reasons[0].have, ::testing::HasSubstr(" MB in one allocation"));
    // Another device of the machine without this limit serves.
    Machine both = machine;
    both.gpus.push_back(machine.gpus[0]);
    both.gpus[1].index = 1;
    both.gpus[1].max_allocation_bytes = 0;
    EXPECT_TRUE(select(named, both).plan);
  }
}

}  // namespace
}  // namespace moracle::gates_test
