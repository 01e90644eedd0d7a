// Tests the plan of every row: its kernels, its layout, and sizes beyond 32 bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/text.h"
#include "conformance/conformance.h"
#include "kernels/cuda/planned_tokens.h"
#include "layout/layout.h"
#include "oracle/fake_rows.h"
#include "oracle/workspace.h"
#include "support/sample.h"

namespace moracle::plans_test {
namespace {

using ::testing::HasSubstr;

/// Calls `check` with the plan of every row for every scheme on every machine it accepts; under
/// sanitizers of every fifth.
template <class Check>
void for_each_plan(Check check) {
  for (const Machine& machine : Machine::known()) {
    for (const Scheme& scheme : conformance::schemes()) {
      testing::Sample sample(machine.name + name(scheme));
      for (const Backend& row : backends()) {
        if (!sample.takes()) continue;
        SCOPED_TRACE(str(row.name, ", ", name(scheme), ", ", machine.name));
        const Selection selection =
            select({.layer = fake::layer(scheme), .backend = std::string(row.name)}, machine);
        if (selection.plan) check(row, *selection.plan);
      }
    }
  }
}

// Each later kernel needs more tokens or more rows, and names are unique.
TEST(Plans, ListKernelsByTokensAndRows) {
  int plans = 0;
  for_each_plan([&](const Backend&, const Plan& plan) {
    ++plans;
    for (const MatrixPlan& matrix : plan.matrices) {
      const std::vector<KernelUse>& kernels = matrix.kernels;
      ASSERT_FALSE(kernels.empty());
      EXPECT_EQ(kernels[0].range.from_tokens, 1);
      EXPECT_EQ(kernels[0].range.from_rows, 1);
      for (size_t i = 0; i < kernels.size(); ++i) {
        EXPECT_FALSE(kernels[i].name.empty());
        EXPECT_THAT(describe(plan), HasSubstr(describe(kernels[i]))) << "a person sees it too";
        if (i == 0) continue;
        const KernelRange &a = kernels[i - 1].range, &b = kernels[i].range;
        EXPECT_LT(std::tie(a.from_tokens, a.from_rows), std::tie(b.from_tokens, b.from_rows));
        EXPECT_NE(kernels[i - 1].name, kernels[i].name);
      }
    }
  });
  EXPECT_GT(plans, 0);
}

/// Token counts up to `most`: all small ones, powers of two, and those where the range of a kernel
/// begins or ends.
std::set<int64_t> counts_around_limits(const std::vector<KernelUse>& kernels, int64_t most) {
  std::set<int64_t> counts;
  const auto add = [&](int64_t count) {
    for (int64_t near : {count - 1, count, count + 1})
      if (near >= 1 && near <= most) counts.insert(near);
  };
  for (int64_t count = 1; count <= most; count = count < 40 ? count + 1 : 2 * count) add(count);
  for (const KernelUse& use : kernels) add(use.range.from_tokens), add(use.range.to_tokens);
  add(most);
  return counts;
}

// Exactly one kernel for each number of tokens and of rows of an expert, by data, not by words.
TEST(Plans, NameOneKernelPerTokenAndRowCount) {
  int several = 0;
  for_each_plan([&](const Backend&, const Plan& plan) {
    for (const MatrixPlan& matrix : plan.matrices) {
      several += matrix.kernels.size() > 1;
      const auto& kernels = matrix.kernels;
      for (int64_t tokens : counts_around_limits(kernels, plan.max_num_tokens)) {
        for (int64_t rows = 1; rows <= tokens; rows = rows < 40 ? rows + 1 : 2 * rows) {
          const auto count = std::count_if(kernels.begin(), kernels.end(), [&](const auto& use) {
            return use.range.may_run(tokens, rows);
          });
          ASSERT_EQ(count, 1) << tokens << " tokens, " << rows << " rows";
        }
      }
    }
  });
  EXPECT_GT(several, 0);
}

// Lists no kernel that needs more tokens than the maximum.
TEST(Plans, OmitKernelsUnreachableForFewTokens) {
  const auto kernels = [](int64_t tokens, const char* backend, const char* machine) {
    const Request request{
        .layer = fake::layer(int4_static_group(128)), .max_num_tokens = tokens, .backend = backend};
    return select(request, *Machine::find(machine)).chosen()->matrices[0].kernels;
  };
  EXPECT_EQ(kernels(1, "cuda-sm80", "h200").size(), 1u);
  EXPECT_EQ(kernels(4096, "cuda-sm80", "h200").size(), 4u);
#if defined(__x86_64__)
  EXPECT_EQ(kernels(1, "cpu-avx2", "desktop-avx2").size(), 1u);
  EXPECT_EQ(kernels(4096, "cpu-avx2", "desktop-avx2").size(), 2u);
#endif
}

// The mean number of rows of an expert decides: 16 experts, top-k 4.
TEST(Plans, TensorCoreTilesGrowWithTokens) {
  const Request request{.layer = fake::layer(int4_static_group(128)), .backend = "cuda-sm80"};
  const Plan plan = *select(request, *Machine::find("h200")).chosen();
  std::vector<std::tuple<int64_t, int64_t>> tokens;
  for (const KernelUse& use : plan.matrices[0].kernels)
    tokens.emplace_back(use.range.from_tokens, use.range.to_tokens);
  EXPECT_THAT(tokens, ::testing::ElementsAre(std::tuple(1, 24), std::tuple(25, 48),
                                             std::tuple(49, 360), std::tuple(361, 0)));
}

/// The most tokens that stream weights in fused kernels, and the least that run on wgmma; 0: none.
using Limits = std::pair<int64_t, int64_t>;
Limits fused_tokens(const Plan& plan) {
  const KernelPlan &first = *plan.matrices[0].kernel, &second = *plan.matrices[1].kernel;
  for (int64_t tokens = 1; tokens <= plan.max_num_tokens; ++tokens)
    EXPECT_EQ(first.fuses(tokens), second.fuses(tokens)) << tokens;
  const auto few = cuda::planned_tokens(first, CudaForm::Kernel::kStreamed, true),
             many = cuda::planned_tokens(first, CudaForm::Kernel::kWgmma, true);
  return {few ? few->last : 0, many ? many->first : 0};
}

// Few tokens stream weights, many run on wgmma where the row has it, and those between on the tiles
// of cuda-sm80. Both matrices agree, and what stands between the stages ends it.
TEST(Plans, HopperRowFusesFewAndManyTokens) {
  const auto plan = [](const char* backend, bool deterministic = false, int64_t lora_rank = 0) {
    LayerSpec layer = fake::layer(int4_static_group(128));
    layer.hidden_size = 512, layer.intermediate_size = 256;
    Request request{.layer = layer, .backend = backend};
    request.deterministic = deterministic;
    request.lora_rank = lora_rank;
    return *select(request, *Machine::find("h200")).chosen();
  };
  const auto uses = [](const Plan& of, int matrix) {
    std::string text;
    for (const KernelUse& use : of.matrices[matrix].kernels)
      text +=
          str(use.range.from_tokens, "-", use.range.to_tokens, " ", use.name.substr(0, 28), "\n");
    return text;
  };
  const Plan sm90 = plan("cuda-sm90");
  EXPECT_EQ(fused_tokens(sm90), (Limits{8, 48}));
  EXPECT_FALSE(sm90.matrices[0].kernel->deterministic);
  EXPECT_EQ(uses(sm90, 1),
            "1-8 mma.sync, streamed panels fo\n9-24 mma.sync, tiles of 8 rows, b\n"
            "25-47 mma.sync, tiles of 16 rows, \n48-80 wgmma, tiles of 32 rows, bf1\n"
            "81-208 wgmma, tiles of 64 rows, bf1\n209-456 wgmma, tiles of 128 rows, bf\n"
            "457-0 wgmma, tiles of 144 rows, bf\n");
  for (const Plan& staged : {plan("cuda-sm90", true), plan("cuda-sm90", false, 16)}) {
    EXPECT_FALSE(staged.matrices[0].kernel->fuses());
    EXPECT_EQ(uses(staged, 0), uses(plan("cuda-sm80"), 0));
  }
  EXPECT_TRUE(plan("cuda-sm90", true).matrices[0].kernel->deterministic);
}

// First tokens and rows of the tiles of wgmma: top-k 4.
std::string hopper_tiles(const char* scheme, int64_t experts, int64_t hidden, int64_t inner) {
  LayerSpec layer = fake::layer(*parse_scheme(scheme));
  layer.num_experts = experts;
  layer.hidden_size = hidden, layer.intermediate_size = inner;
  const Request request{.layer = layer, .max_num_tokens = 8192, .backend = "cuda-sm90"};
  const Plan plan = *select(request, *Machine::find("h200")).chosen();
  std::string text;
  for (const PlannedKernel& kernel : plan.matrices[0].kernel->kernels) {
    const CudaForm& form = std::get<CudaForm>(kernel.form);
    if (form.kernel == CudaForm::Kernel::kWgmma)
      text += str(kernel.range.from_tokens, ":", form.rows, " ");
  }
  return text;
}

// One tile of 144 rows holds nearly every expert of about 128 rows, two those of about 256. Not
// where sums of groups that end within a stage, or groups of activations, leave no registers.
TEST(Plans, HopperTilesFollowMeanRowsOfExperts) {
  const auto tiles = [](const char* scheme) { return hopper_tiles(scheme, 16, 512, 256); };
  const std::string few = "48:32 81:64 ";
  for (const char* scheme : {"bf16", "int8-w8a8"})
    EXPECT_EQ(tiles(scheme), few + "209:128 401:144 537:192 761:144 1081:192 ") << scheme;
  for (const char* scheme : {"mxfp4-w4a16", "nvfp4-w4a16", "mxfp8-w8a16", "int8-w8a16-channel"})
    EXPECT_EQ(tiles(scheme), few + "209:128 457:144 561:128 929:144 1105:128 ") << scheme;
  EXPECT_EQ(tiles("int4-w4a16-g128"), few + "209:128 457:144 537:128 ");
  EXPECT_EQ(tiles("fp8-w8a8-channel"), few + "161:128 457:144 585:128 ");
  for (const char* scheme : {"int4-w4afp8-g128", "mxfp4-w4afp8"}) {
    EXPECT_EQ(tiles(scheme),
              few + "209:128 457:144 561:128 929:144 1105:128 1401:144 1761:128 1941:144 ")
        << scheme;
  }
  for (const char* scheme : {"int4-w4a16-g32", "int4-w4a16-g64-asym"})
    EXPECT_EQ(tiles(scheme), few + "209:128 ") << scheme;
  for (const char* scheme : {"fp8-w8a8-block128x128", "fp8-w8a8-block128x128-token"})
    EXPECT_EQ(tiles(scheme), few + "161:128 ") << scheme;
}

// Among many experts one of two tiles costs little, so small tiles serve more rows than among few;
// those of 4 bits more still.
TEST(Plans, HopperTilesOfFewRowsFollowNumberOfExperts) {
  for (const auto& [scheme, many] : {std::pair{"int4-w4a16-g128", ":16 385:32 769:64 1793:128 "},
                                     {"bf16", ":16 321:32 705:64 1665:128 "},
                                     {"fp8-w8a8-block128x128", ":16 321:32 705:64 1281:128 "}})
    EXPECT_THAT(hopper_tiles(scheme, 128, 2048, 768), ::testing::HasSubstr(many)) << scheme;
}

// Tokens that a skinny GEMM serves, if the row has one for this linear layer.
Limits skinny_tokens(const char* scheme, int64_t outputs, int64_t columns) {
  const LayerSpec layer{.name = "q_proj",
                        .linear = true,
                        .hidden_size = columns,
                        .intermediate_size = outputs,
                        .scheme = *parse_scheme(scheme)};
  const Selection selection = select(
      {.layer = layer, .max_num_tokens = 512, .backend = "cuda-sm90"}, *Machine::find("h200"));
  const KernelPlan& plan = *selection.chosen()->matrices[0].kernel;
  const auto some = cuda::planned_tokens(plan, CudaForm::Kernel::kSkinny, false),
             many = cuda::planned_tokens(plan, CudaForm::Kernel::kWgmma, false);
  if (many) {
    EXPECT_EQ(many->first, some ? some->last + 1 : 17);
  }
  return some ? Limits{some->first, some->last} : Limits{0, 0};
}

TEST(Plans, HopperRowRunsUpTo64TokensOfLinearLayersAsSkinnyGemm) {
  for (const char* scheme : {"int4-w4a16-g128", "int4-w4a16-g32-asym", "int8-w8a8",
                             "fp8-w8a8-block128x128", "fp8-w8a8-channel", "int4-w4afp8-g128"}) {
    EXPECT_EQ(skinny_tokens(scheme, 5120, 2048), (Limits{17, 64})) << scheme;
    EXPECT_EQ(skinny_tokens(scheme, 2048, 4096), (Limits{17, 64})) << scheme;
    // Too many outputs for one round of the SMs, too many columns for shared memory.
    EXPECT_EQ(skinny_tokens(scheme, 24'576, 1536), (Limits{0, 0})) << scheme;
    EXPECT_EQ(skinny_tokens(scheme, 2048, 65'536), (Limits{0, 0})) << scheme;
  }
  // Columns that are no whole k-blocks.
  EXPECT_EQ(skinny_tokens("int8-w8a8", 2048, 4096 + 16), (Limits{0, 0}));
  for (const char* scheme : {"bf16", "mxfp4-w4a16", "int4-w4a16-g32-min", "nvfp4-w4a16"})
    EXPECT_EQ(skinny_tokens(scheme, 5120, 2048), (Limits{0, 0})) << scheme;
}

// Plans say which products have rounded weights. One change of the weights at load serves all
// kernels, so either all names have the note, for every number of tokens, or none.
TEST(Plans, HopperRowNamesProductsOfMxfp8WithOneExponentPerRow) {
  const auto plan = [](const char* scheme, bool deterministic = false, int64_t hidden = 512,
                       int64_t intermediate = 256) {
    LayerSpec layer = fake::layer(kMxfp8Static);
    layer.scheme = *parse_scheme(scheme);
    layer.hidden_size = hidden, layer.intermediate_size = intermediate;
    Request request{.layer = layer, .max_num_tokens = 4096, .backend = "cuda-sm90"};
    request.deterministic = deterministic;
    return *select(request, *Machine::find("h200")).chosen();
  };
  const auto named = [](const Plan& of, int64_t tokens, int matrix = 0) {
    for (const KernelUse& use : of.matrices[matrix].kernels)
      if (use.range.may_run(tokens))
        return use.name.find("one exponent per row") != std::string::npos;
    return false;
  };
  const Plan both = plan("mxfp8-w8a8");
  EXPECT_FALSE(both.matrices[0].kernel->fuses(20)) << "tiles of cuda-sm80 serve some counts";
  EXPECT_EQ(both.matrices[0].kernel->product_group, 512);
  for (const auto& [hidden, intermediate] : {std::pair<int64_t, int64_t>{512, 256},
                                             {256, 128},
                                             {2048, 768},
                                             {4096, 14336},
                                             {7168, 2048}}) {
    SCOPED_TRACE(str(hidden, " -> ", intermediate));
    const Plan one = plan("mxfp8-w8a8", false, hidden, intermediate);
    for (int matrix : {0, 1}) {
      EXPECT_GT(one.matrices[matrix].kernel->product_group, 0);
      for (int64_t tokens = 1; tokens <= 4096; tokens += tokens < 128 ? 1 : 37)
        EXPECT_TRUE(named(one, tokens, matrix)) << tokens << " tokens, matrix " << matrix;
    }
  }
  // Both matrices or none: one has rows of three blocks of 32 columns, or of parts of a block.
  for (const Plan& exact :
       {plan("mxfp8-w8a16"), plan("mxfp8-w8a8", true), plan("mxfp8-w8a8", false, 96),
        plan("mxfp8-w8a8", false, 144), plan("mxfp8-w8a8", false, 512, 144)}) {
    EXPECT_EQ(exact.matrices[1].kernel->product_group, 0);
    EXPECT_EQ(exact.matrices[0].kernel->product_group, 0);
    for (const int64_t tokens : {1, 8, 20, 100, 4096}) EXPECT_FALSE(named(exact, tokens)) << tokens;
  }
}

// Both matrices of a layer switch at the same number of tokens, which the weights decide: tiles of
// the experts found must fill the GPU, and int4 needs more of them.
TEST(Plans, HopperRowSwitchesToWgmmaWhereTilesFillTheGpu) {
  const auto fused = [](int64_t experts, int64_t hidden, int64_t inner, int64_t top_k,
                        const Scheme& scheme) {
    const LayerSpec layer{.name = "layers.0.experts",
                          .num_experts = experts,
                          .hidden_size = hidden,
                          .intermediate_size = inner,
                          .top_k = top_k,
                          .scheme = scheme};
    const Request request{.layer = layer, .backend = "cuda-sm90"};
    return fused_tokens(*select(request, *Machine::find("h200")).chosen());
  };
  const Scheme int8{kInt8StaticChannelSym, kInt8DynamicTokenSym},
      int4 = {int4_static_group(128), {}};
  EXPECT_EQ(fused(128, 2048, 768, 8, int8), (Limits{8, 9}));
  EXPECT_EQ(fused(128, 2048, 768, 8, int4), (Limits{3, 4}));
  EXPECT_EQ(fused(8, 4096, 14336, 2, int8), (Limits{3, 4}));
  EXPECT_EQ(fused(8, 4096, 14336, 2, int4), (Limits{1, 2}));
  EXPECT_EQ(fused(8, 4096, 14336, 2, {kNvfp4Static, {}}), (Limits{4, 5}));
  EXPECT_EQ(fused(8, 4096, 14336, 2, {int4_static_group(128), kFp8DynamicTokenSym}),
            (Limits{9, 10}));
  EXPECT_EQ(fused(8, 4096, 14336, 2, {kMxfp4Static, {}}), (Limits{8, 9}));
  EXPECT_EQ(fused(32, 7168, 2048, 8, int4), (Limits{0, 1}));
  // Rows of fp8 may end within a block of 128 columns, but not within 32.
  const Scheme blocks{kFp8Static128BlockSym, kFp8Dynamic128Sym};
  EXPECT_EQ(fused(128, 2880, 2880, 4, blocks), fused(128, 2880, 2880, 4, int8));
  EXPECT_EQ(fused(128, 2880, 1440, 4, blocks), fused(128, 2880, 1440, 4, int8));
  EXPECT_EQ(fused(128, 2880, 2864, 4, blocks).second, 0);
}

// As Q4_K_M stores a layer: gate and up in Q4_K, down in Q6_K in every second layer.
TEST(Plans, HopperRowFusesMatricesOfUnlikeSchemes) {
  const auto key = [](const char* scheme) { return parse_scheme(scheme)->weight; };
  const auto plan = [&](const char* w13, const char* w2, const char* backend = "cuda-sm90") {
    LayerSpec layer = fake::layer(key(w13));
    layer.hidden_size = 2048, layer.intermediate_size = 768;
    layer.stored = layer.matrices();
    layer.stored[1].key = key(w2);
    return *select({.layer = layer, .backend = backend}, *Machine::find("h200")).chosen();
  };
  const char* const q4 = "int4-w4a16-g32-asym-min-s8";
  const Plan alike = plan(q4, q4), unlike = plan(q4, "int8-w8a16-g16-s8-6bit"),
             exact = plan(q4, "int8-w8a16-g32");
  EXPECT_GT(fused_tokens(alike).first, 0);
  EXPECT_GT(fused_tokens(alike).second, 0);
  EXPECT_EQ(fused_tokens(unlike), fused_tokens(alike));
  EXPECT_EQ(fused_tokens(exact), fused_tokens(alike));
  // Only wgmma rounds the values, and only of groups that end within a k-block or have minimums.
  const auto bits = [](const Plan& of) {
    return std::pair(of.matrices[0].product_bits, of.matrices[1].product_bits);
  };
  EXPECT_EQ(bits(unlike), std::pair(16, 16));
  EXPECT_EQ(bits(exact), std::pair(16, 24));
  EXPECT_EQ(bits(plan(q4, "int8-w8a16-g16-s8-6bit", "cuda-sm80")), std::pair(24, 24));
}

TEST(KernelUses, DescribeRangesInWords) {
  EXPECT_EQ(describe(KernelUse{"all"}), "all");
  EXPECT_EQ(describe(KernelUse{"few", {.to_rows = 4}}), "few; experts with up to 4 rows");
  EXPECT_EQ(describe(KernelUse{"many", {.from_tokens = 2, .from_rows = 5}}),
            "many; experts with 5 rows or more; 2 tokens or more");
  EXPECT_EQ(describe(KernelUse{"a", {1, 24}}), "a; up to 24 tokens");
  EXPECT_EQ(describe(KernelUse{"a", {1, 1}}), "a; 1 token");
  EXPECT_EQ(describe(KernelUse{"a", {25, 48}}), "a; 25 to 48 tokens");
}

// Weights have the layout of the chosen row on every machine.
TEST(Plans, UseLayoutOfRowOnEveryMachine) {
  for_each_plan([](const Backend& row, const Plan& plan) {
    EXPECT_EQ(plan.backend, &row);
    EXPECT_EQ(plan.layout, row.layout->name);
    int64_t bytes = 0;
    for (const MatrixPlan& matrix : plan.matrices)
      bytes +=
          plan.layer.num_experts * static_cast<int64_t>(row.layout->sections(matrix.shape).bytes);
    EXPECT_EQ(plan.weight_bytes, bytes);
  });
}

// ---- sizes beyond 32 bits; nothing is allocated ----

LayerSpec long_layer(const Scheme& scheme) {
  return {.name = "layers.0.experts",
          .num_experts = 64,
          .hidden_size = 2048,
          .intermediate_size = 768,
          .top_k = 8,
          .scheme = scheme};
}

Machine large() {
  return {"large", {"a CPU", Isa::kNone, 1, int64_t{1} << 50}, {}};
}

struct Extent {
  const void* begin;
  int64_t bytes;
};
Extent extent(const Matrix& m) {
  return {m.data, m.rows * m.stride * bits(m.dtype) / 8};
}

// 262,144 tokens of 2,048 columns, eight experts each: 2^32 numbers between the GEMMs of a row that
// does not fuse the activation.
TEST(Plans, ArraysOfLongPrefillDoNotOverlap) {
  constexpr int64_t kTokens = 262'144, kRows = kTokens * 8;
  auto* const base = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
  for (const Scheme& scheme :
       {Scheme{kBF16Weight, {}}, Scheme{kInt8StaticChannelSym, kInt8DynamicTokenSym},
        Scheme{kFp8StaticTensorSym, kFp8StaticTensorSym}}) {
    SCOPED_TRACE(name(scheme));
    const auto plan =
        select({.layer = long_layer(scheme), .max_num_tokens = kTokens, .backend = "reference"},
               large())
            .chosen();
    ASSERT_TRUE(plan) << plan.error().to_string();
    const MoeScratch rooms = carve_moe(*plan, base);
    EXPECT_EQ(static_cast<int64_t>(rooms.bytes), plan->workspace_bytes);
    EXPECT_EQ(extent(rooms.y).bytes, kRows * 2048 * 4);
    EXPECT_EQ(extent(rooms.gate_up).bytes, kRows * 2 * 768 * 4);

    std::vector<Extent> arrays = {extent(rooms.hidden), extent(rooms.input.values)};
    if (rooms.input.num_scales > 0) {
      const int64_t rows = rooms.input.values.rows;
      arrays.push_back({rooms.input.scales, rows * rooms.input.num_scales * 4});
    }
    arrays.push_back({rooms.rows.expert_offsets, (64 + 1) * 4});
    arrays.push_back({rooms.rows.row_token, kRows * 4});
    arrays.push_back({rooms.rows.slot_row, kRows * 4});
    arrays.push_back({rooms.rows.row_slot, kRows * 4});
    arrays.push_back(extent(rooms.gate_up));
    arrays.push_back(extent(rooms.activated));
    if (scheme.activation) {
      arrays.push_back(extent(rooms.intermediate.values));
      arrays.push_back({rooms.intermediate.scales, kRows * rooms.intermediate.num_scales * 4});
    }
    arrays.push_back(extent(rooms.y));
    const std::byte* end = base;
    for (const Extent& array : arrays) {
      const auto* begin = static_cast<const std::byte*>(array.begin);
      EXPECT_GE(begin, end);
      EXPECT_LT(begin - end, 64);
      end = begin + array.bytes;
    }
    EXPECT_LE(end - base, plan->workspace_bytes);
    EXPECT_GT(plan->workspace_bytes, int64_t{1} << 34);
  }
}

// Kernels count rows, one per token and expert, in 32 bits. Larger plans are rejected.
TEST(Plans, RejectMoreRowsThanIndexTypeCounts) {
  const LayerSpec layer = long_layer({kBF16Weight, {}});
  const int64_t most = INT32_MAX / layer.top_k;
  auto selected = [&](int64_t tokens) {
    return select({.layer = layer, .max_num_tokens = tokens}, large());
  };
  EXPECT_TRUE(selected(most).plan);
  for (int64_t tokens : {most + 1, int64_t{1} << 31, int64_t{1} << 40, INT64_MAX}) {
    const Selection selection = selected(tokens);
    ASSERT_FALSE(selection.plan) << tokens;
    for (const Verdict& verdict : selection.considered) {
      const auto& reasons = verdict.reasons;
      EXPECT_TRUE(std::any_of(reasons.begin(), reasons.end(), [](const Reason& reason) {
        return reason.rule == "tokens";
      })) << verdict.backend->name;
    }
    EXPECT_THAT(selection.chosen().error().fact, HasSubstr(str("at most ", most, " tokens")));
  }
}

}  // namespace
}  // namespace moracle::plans_test
