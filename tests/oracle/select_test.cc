// Tests backend selection: every row gets a verdict, every reason is kept, and there is no
// fallback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>

#include <filesystem>
#include <set>
#include <span>
#include <string>

#include "conformance/conformance.h"
#include "layout/layout.h"
#include "moracle/oracle.h"
#include "oracle/fake_rows.h"
#include "oracle/preferences.h"
#include "oracle/rules/rules.h"
#include "paths.h"
#include "quant/codec.h"
#include "support/sample.h"

namespace moracle::select_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Machine old_pc() {
  return *Machine::find("x86-64");
}

/// Runs `check` for every known machine and every scheme.
template <class Check>
void for_each_machine_and_scheme(const Check& check) {
  for (const Machine& machine : Machine::known()) {
    for (const Scheme& scheme : conformance::schemes()) {
      SCOPED_TRACE(machine.name + ", " + name(scheme));
      check(machine, scheme);
    }
  }
}

TEST(Select, GivesEveryRowAVerdictInTableOrder) {
  const auto table = fake::table();
  for_each_machine_and_scheme([&](const Machine& machine, const Scheme& scheme) {
    for (const std::string backend : {"auto", "fake-amx", "fake-all", "no-such-backend"}) {
      Request request{.layer = fake::layer(scheme), .backend = backend};
      const Selection selection = select(request, machine, table);
      ASSERT_EQ(selection.considered.size(), table.size());
      for (size_t i = 0; i < table.size(); ++i)
        EXPECT_EQ(selection.considered[i].backend, &table[i]) << backend;
    }
  });
}

TEST(Select, ChoosesFirstServingRow) {
  const auto table = fake::table();
  for_each_machine_and_scheme([&](const Machine& machine, const Scheme& scheme) {
    const Selection selection = select({.layer = fake::layer(scheme)}, machine, table);
    const auto first = std::find_if(selection.considered.begin(), selection.considered.end(),
                                    [](const Verdict& verdict) { return verdict.accepted(); });
    ASSERT_NE(first, selection.considered.end());
    ASSERT_TRUE(selection.plan);
    EXPECT_EQ(selection.plan->backend, first->backend);
    EXPECT_EQ(selection.chosen()->backend, first->backend);
  });
}

TEST(Select, IsAPureFunction) {
  const Request request{.layer = fake::layer(kF32Weight)};
  const auto table = fake::table(), copy = fake::table();
  const Selection once = select(request, old_pc(), table);
  const Selection again = select(request, old_pc(), copy);
  EXPECT_EQ(explain(once), explain(again));
}

// P3: all reasons of all rows, each with need and fact.
TEST(Select, KeepsEveryReason) {
  const auto table = fake::table();
  Scheme scheme{{DType::kI4, per_group(24), false, false}, kInt8DynamicTokenSym};
  Request request{.layer = fake::layer(scheme), .backend = "fake-amx", .platform = Platform::kCuda};
  request.layer.group_index = true;
  request.layer.bias = true;
  const Selection selection = select(request, old_pc(), table);
  const Verdict* amx = fake::verdict(selection, "fake-amx");
  std::set<std::string_view> names;
  for (const Reason& reason : amx->reasons) {
    names.insert(reason.rule);
    EXPECT_FALSE(reason.need.empty()) << reason.rule;
    EXPECT_FALSE(reason.have.empty()) << reason.rule;
  }
  EXPECT_EQ(names, (std::set<std::string_view>{"platform", "build", "isa", "weights", "activations",
                                               "zero-points", "act-order", "bias", "group-size"}));
  EXPECT_EQ(names.size(), amx->reasons.size());
}

void expect_error_of_row(const Error& error, const Request& request, const Verdict& named,
                         std::span<const Backend> table) {
  EXPECT_EQ(error.kind, ErrorKind::kUnsupported);
  EXPECT_EQ(error.place, request.layer.name);
  EXPECT_THAT(error.need, HasSubstr(name(request.layer.scheme)));
  for (const Reason& reason : named.reasons) {
    EXPECT_THAT(error.fact, HasSubstr(std::string(reason.rule)));
    EXPECT_THAT(error.fact, HasSubstr(reason.need));
    EXPECT_THAT(error.fact, HasSubstr(reason.have));
  }
  for (const Backend& other : table) {
    if (other.name == named.backend->name) continue;
    EXPECT_THAT(error.fact, Not(HasSubstr(std::string(other.name))));
  }
}

// P4: a named row that cannot serve is an error with its own reasons, even if other rows can serve.
TEST(Select, NeverReplacesNamedRow) {
  const auto table = fake::table();
  for_each_machine_and_scheme([&](const Machine& machine, const Scheme& scheme) {
    for (const Backend& row : table) {
      const Request request{.layer = fake::layer(scheme), .backend = std::string(row.name)};
      const Selection selection = select(request, machine, table);
      const Verdict* named = fake::verdict(selection, row.name);
      ASSERT_EQ(selection.plan.has_value(), named->accepted());
      if (selection.plan) {
        EXPECT_EQ(selection.plan->backend, &row);
        continue;
      }
      const auto chosen = selection.chosen();
      ASSERT_FALSE(chosen);
      expect_error_of_row(chosen.error(), request, *named, table);
    }
  });
}

void expect_same_reasons(const Verdict& got, const Verdict& want) {
  ASSERT_EQ(got.reasons.size(), want.reasons.size());
  for (size_t i = 0; i < want.reasons.size(); ++i) {
    EXPECT_EQ(got.reasons[i].rule, want.reasons[i].rule);
    EXPECT_EQ(got.reasons[i].need, want.reasons[i].need);
    EXPECT_EQ(got.reasons[i].have, want.reasons[i].have);
  }
}

TEST(Select, NamedRowHasSamePlanAndReasonsAsAuto) {
  const auto table = fake::table();
  for_each_machine_and_scheme([&](const Machine& machine, const Scheme& scheme) {
    const Selection automatic = select({.layer = fake::layer(scheme)}, machine, table);
    ASSERT_TRUE(automatic.plan);
    testing::Sample sample(machine.name + name(scheme));
    for (const Verdict& verdict : automatic.considered) {
      if (!sample.takes()) continue;
      const Selection named =
          select({.layer = fake::layer(scheme), .backend = std::string(verdict.backend->name)},
                 machine, table);
      expect_same_reasons(*fake::verdict(named, verdict.backend->name), verdict);
      if (automatic.plan->backend != verdict.backend) continue;
      ASSERT_TRUE(named.plan);
      EXPECT_EQ(named.plan->weight_bytes, automatic.plan->weight_bytes);
      EXPECT_TRUE(named.plan->layer.same_but_name(automatic.plan->layer));
    }
  });
}

TEST(Select, UnknownNameListsKnownRows) {
  const auto table = fake::table();
  for (const std::string unknown : {"fake", "Reference", "", "none", "fake-all "}) {
    const auto chosen =
        select({.layer = fake::layer(kF32Weight), .backend = unknown}, old_pc(), table).chosen();
    ASSERT_FALSE(chosen);
    EXPECT_EQ(chosen.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(chosen.error().fact, HasSubstr("'" + unknown + "'"));
    EXPECT_THAT(chosen.error().need, HasSubstr("auto"));
    for (const Backend& row : table)
      EXPECT_THAT(chosen.error().need, HasSubstr(std::string(row.name)));
  }
}

// The error comes at plan time and lists every row that was considered.
TEST(Select, ErrorWithoutServingRowHasWholeTrail) {
  const auto table = fake::table();
  const auto without_last = std::span(table).first(table.size() - 1);
  const Selection selection = select({.layer = fake::layer(kF32Weight)}, old_pc(), without_last);
  EXPECT_FALSE(selection.plan);
  const auto chosen = selection.chosen();
  ASSERT_FALSE(chosen);
  EXPECT_EQ(chosen.error().kind, ErrorKind::kUnsupported);
  for (const Verdict& verdict : selection.considered) {
    EXPECT_FALSE(verdict.accepted());
    EXPECT_THAT(chosen.error().fact, HasSubstr(std::string(verdict.backend->name)));
    for (const Reason& reason : verdict.reasons) {
      EXPECT_THAT(chosen.error().fact, HasSubstr(reason.need));
      EXPECT_THAT(chosen.error().fact, HasSubstr(reason.have));
    }
  }
}

TEST(Select, EmptyTableIsAnError) {
  const Selection selection = select({.layer = fake::layer(kF32Weight)}, old_pc(), {});
  EXPECT_TRUE(selection.considered.empty());
  EXPECT_FALSE(selection.chosen());
}

TEST(Select, PlansRequestedSchemeAndPackingMemory) {
  for (const Scheme& scheme : conformance::schemes()) {
    const LayerSpec layer = fake::layer(scheme);
    const Plan plan = *select({.layer = layer, .max_num_tokens = 77}, old_pc()).chosen();
    EXPECT_EQ(plan.layer.scheme, scheme) << "executed as planned";
    EXPECT_TRUE(plan.layer.same_but_name(layer));
    EXPECT_EQ(plan.max_num_tokens, 77);
    int64_t bytes = 0;
    for (const MatrixShape& shape : layer.matrices()) {
      bytes +=
          static_cast<int64_t>(plan.backend->layout->sections(shape).bytes) * layer.num_experts;
    }
    EXPECT_EQ(plan.weight_bytes, bytes);
    EXPECT_EQ(plan.layout, plan.backend->layout->name);
    EXPECT_GT(plan.workspace_bytes, 0);
    ASSERT_EQ(plan.matrices.size(), 2u);
    for (const MatrixPlan& matrix : plan.matrices) {
      ASSERT_FALSE(matrix.kernels.empty());
      EXPECT_EQ(matrix.kernels[0].range.from_tokens, 1) << "something runs at every token count";
    }
  }
}

// Activations that the scheme quantizes reach the kernel as codes, or as the floats that the
// codes stand for; activations that it does not quantize never become codes.
TEST(Select, PlansCodesOnlyForSchemesWithCodes) {
  const auto input = [](const Scheme& scheme) {
    const Plan plan = *select({.layer = fake::layer(scheme)}, old_pc()).chosen();
    return plan.matrices[0].input_dtype;
  };
  EXPECT_EQ(input({kInt8StaticChannelSym, kInt8DynamicTokenSym}), DType::kI8);
  EXPECT_EQ(input({kInt8StaticChannelSym, {}}), DType::kF32);
}

// A plan for zero tokens is impossible, and every row gives that reason.
TEST(Select, RejectsFewerThanOneToken) {
  for (int64_t tokens : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    for (ActivationFormat format : {ActivationFormat::kStandard, ActivationFormat::kBatched}) {
      Request request{.layer = fake::layer(kBF16Weight), .max_num_tokens = tokens};
      request.parallel.format = format;
      const Selection selection = select(request, *Machine::find("h200"));
      ASSERT_FALSE(selection.plan);
      EXPECT_THAT(selection.chosen().error().fact, HasSubstr("tokens: needs at least 1 token"));
    }
  }
}

// This machine gets only kernels of this build. A known machine gets those of its own build.
TEST(Select, RequiresBuiltKernelsUnlessMachineHasEveryPlatform) {
  std::array<Backend, 4> table = fake::table();
  for (Backend& row : table) row.kernels = &fake::kElsewhere;
  Machine machine = old_pc();
  ASSERT_TRUE(machine.every_platform);
  EXPECT_EQ(select({.layer = fake::layer(kBF16Weight)}, machine, table).plan->backend->name,
            "fake-all");
  machine.every_platform = false;
  EXPECT_FALSE(select({.layer = fake::layer(kBF16Weight)}, machine, table).plan);
  EXPECT_FALSE(Machine::here().every_platform);
}

TEST(Select, OnlyWorkspaceGrowsWithTokens) {
  const LayerSpec layer = fake::layer(int4_static_group(128));
  auto plan = [&](int64_t tokens) {
    return *select({.layer = layer, .max_num_tokens = tokens}, old_pc()).chosen();
  };
  EXPECT_GT(plan(1000).workspace_bytes, 9 * plan(100).workspace_bytes);
  EXPECT_EQ(plan(1000).weight_bytes, plan(100).weight_bytes);
}

// ---- exceptions to the order ----

TEST(Preferences, PreferNativeCodeOverOpenClOnSameCores) {
  const LayerSpec layer = fake::layer(int4_static_group(128));
  const Selection on_cpu = select({.layer = layer}, *Machine::find("pocl"));
  EXPECT_EQ(on_cpu.plan->backend->name, "cpu-avx512");
  const Verdict* moved = fake::verdict(on_cpu, "opencl-reference");
  EXPECT_TRUE(moved->accepted());
  ASSERT_NE(moved->moved_back, nullptr);
  EXPECT_THAT(explain(on_cpu), HasSubstr(std::string(moved->moved_back->reason)));
  ASSERT_EQ(on_cpu.considered.size(), backends().size());
  EXPECT_EQ(on_cpu.considered.back().backend->name, "reference") << "still the last resort";
  // A named row serves: a preference is no rejection.
  EXPECT_EQ(select({.layer = layer, .platform = Platform::kOpenCl}, *Machine::find("pocl"))
                .plan->backend->name,
            "opencl-vectors");
}

TEST(Preferences, KeepOrderWhenNotApplicable) {
  const Selection on_gpu =
      select({.layer = fake::layer(int4_static_group(128))}, *Machine::find("arc-b580"));
  EXPECT_EQ(on_gpu.plan->backend->name, "opencl-matrix");
  for (size_t i = 0; i < backends().size(); ++i) {
    EXPECT_EQ(on_gpu.considered[i].backend, &backends()[i]);
    EXPECT_EQ(on_gpu.considered[i].moved_back, nullptr);
  }
}

TEST(Preferences, NameTableRowsAndGiveAReason) {
  for (const Preference& preference : preferences()) {
    for (std::string_view beginning : {preference.first, preference.over}) {
      const bool any = std::any_of(backends().begin(), backends().end(), [&](const Backend& row) {
        return row.name.starts_with(beginning);
      });
      EXPECT_TRUE(any) << preference.name << ": " << beginning;
    }
    EXPECT_FALSE(preference.reason.empty()) << preference.name;
  }
}

// ---- the real table ----

TEST(Backends, HaveUniqueNamesAndMatchingKernelFiles) {
  std::set<std::string> stems;
  const std::filesystem::path kernels =
      std::filesystem::path(testing::golden_dir()).parent_path().parent_path() / "src" / "kernels";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kernels)) {
    if (entry.path().extension() == ".cc" || entry.path().extension() == ".cu") {
      std::string stem = entry.path().stem().string();
      std::replace(stem.begin(), stem.end(), '_', '-');
      stems.insert(stem);
    }
  }
  std::set<std::string_view> names;
  for (const Backend& backend : backends()) {
    EXPECT_TRUE(names.insert(backend.name).second) << backend.name;
    EXPECT_NE(backend.name, "auto");
    EXPECT_FALSE(backend.summary.empty()) << backend.name;
    EXPECT_TRUE(stems.contains(std::string(backend.name))) << backend.name;
    EXPECT_NE(backend.kernels, nullptr) << backend.name;
  }
}

// The layout belongs to the row, and it holds every type that the row reads.
TEST(Backends, ReadOnlyWeightsOfTheirLayoutWithACodec) {
  for (const Backend& backend : backends()) {
    EXPECT_GE(backend.group_multiple, 1) << backend.name;
    EXPECT_GE(backend.size_multiple, 1) << backend.name;
    ASSERT_NE(backend.layout, nullptr) << backend.name;
    for (DType type : backend.weights) {
      const auto& holds = backend.layout->holds;
      EXPECT_NE(std::find(holds.begin(), holds.end(), type), holds.end())
          << backend.name << " " << name(type);
      EXPECT_TRUE(visit_codec(type, []<class Codec>() {})) << backend.name << " " << name(type);
    }
  }
}

TEST(Backends, EndWithReferenceThatServesEverything) {
  const Backend& last = backends().back();
  EXPECT_EQ(last.name, "reference");
  for (const Machine& machine : Machine::known()) {
    for (const Scheme& scheme : conformance::schemes()) {
      LayerSpec layer = fake::layer(scheme);
      layer.bias = true;
      layer.group_index = scheme.weight.quantized();
      const Selection selection = select({.layer = layer}, machine);
      EXPECT_TRUE(fake::verdict(selection, "reference")->accepted())
          << machine.name << " " << name(scheme);
      EXPECT_TRUE(selection.chosen()) << machine.name << " " << name(scheme);
    }
  }
}

}  // namespace
}  // namespace moracle::select_test
