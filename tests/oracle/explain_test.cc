// Tests the printed explanation, and golden files with the choice on every known machine for every
// scheme. After an intended change, run this test once with MORACLE_UPDATE_GOLDEN=1 and review the
// difference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/text.h"
#include "conformance/conformance.h"
#include "moracle/oracle.h"
#include "oracle/fake_rows.h"
#include "paths.h"

namespace moracle::explain_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A layer of the model in the repository, in this scheme, with the features of some layers.
std::vector<std::pair<std::string, LayerSpec>> layers() {
  std::vector<std::pair<std::string, LayerSpec>> all;
  for (const Scheme& scheme : conformance::schemes()) all.emplace_back("", fake::layer(scheme));
  LayerSpec act_order = fake::layer(int4_static_group(128));
  act_order.group_index = true;
  all.emplace_back(", act-order", act_order);
  LayerSpec biases = fake::layer(kBF16Weight);
  biases.bias = true;
  all.emplace_back(", biases", biases);
  all.emplace_back(", groups of 33", fake::layer(int4_static_group(33)));
  return all;
}

void begin(std::string& text, const Machine& machine) {
  text += "== " + machine.name + ": " + machine.cpu.model + ", " + names(machine.cpu.isa);
  for (const GpuInfo& gpu : machine.gpus) text += ", " + gpu.model;
  text += "\n";
}

/// One line per layer: its scheme, the chosen row, and the rules that rejected the other rows.
std::string choices() {
  std::string text;
  for (const Machine& machine : Machine::known()) {
    begin(text, machine);
    for (const auto& [feature, layer] : layers()) {
      const Selection selection = select({.layer = layer}, machine);
      text += name(layer.scheme) + feature + " > ";
      text += selection.plan ? selection.plan->backend->name : "none";
      for (const Verdict& verdict : selection.considered) {
        if (verdict.accepted()) continue;
        const std::string_view rule = verdict.reasons[0].rule;
        if (rule == "build" || rule == "device") continue;
        text += "; not " + std::string(verdict.backend->name) + ":";
        for (const Reason& reason : verdict.reasons) text += " " + std::string(reason.rule);
      }
      text += "\n";
    }
  }
  return text;
}

std::string in_full() {
  std::string text;
  for (const char* scheme : {"int8-w8a8", "int4-w4a16-g128-asym", "fp8-w8a8-block128x128"}) {
    const LayerSpec layer = fake::layer(*parse_scheme(scheme));
    for (const char* machine : {"x86-64", "pocl", "h200"})
      text += str("== ", machine, "\n", explain(select({.layer = layer}, *Machine::find(machine))));
  }
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

void expect_kept(const char* file, const std::string& got) {
  const std::string path = testing::golden_dir() + "/explain/" + file;
  if (std::getenv("MORACLE_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << got;
    return;
  }
  std::ostringstream kept;
  kept << std::ifstream(path).rdbuf();
  if (got == kept.str()) return;
  const std::vector<std::string> old_lines = lines_of(kept.str()), new_lines = lines_of(got);
  std::string heading = "the beginning";
  for (size_t i = 0; i < std::max(old_lines.size(), new_lines.size()); ++i) {
    const std::string was = i < old_lines.size() ? old_lines[i] : "(nothing)";
    const std::string is = i < new_lines.size() ? new_lines[i] : "(nothing)";
    if (was.starts_with("==")) heading = was;
    if (was != is) {
      FAIL() << file << ", line " << i + 1 << ", under " << heading << "\n- " << was << "\n+ " << is
             << "\nIf this is meant: MORACLE_UPDATE_GOLDEN=1 and the same test.";
    }
  }
  FAIL() << file << " differs in its line ends";
}

// The golden texts hold for every build: notes on kernels missing from this build are removed.
std::string of_every_build(std::string text) {
  for (const char* note : {", needs a build with cuda", "needs a build with cuda: ",
                           ", needs a build with opencl", "needs a build with opencl: "}) {
    for (size_t at = text.find(note); at != text.npos; at = text.find(note))
      text.erase(at, std::string_view(note).size());
  }
  return text;
}

// Moving a row changes choices, and these files show which.
TEST(Explain, MatchesGoldenChoiceOnEveryKnownMachineForEveryScheme) {
  expect_kept("choices.txt", choices());
}
TEST(Explain, MatchesGoldenText) {
  expect_kept("in_full.txt", of_every_build(in_full()));
}

// Only rows that this build lacks are marked.
TEST(Explain, MarksRowsMissingFromThisBuild) {
  std::array<Backend, 4> table = fake::table();
  const Request request{.layer = fake::layer(kBF16Weight)};
  const Machine machine = *Machine::find("epyc-zen4");
  EXPECT_THAT(explain(select(request, machine, table)), Not(HasSubstr("needs a build with cpu")));
  table[2].kernels = &fake::kElsewhere;
  const std::vector<std::string> lines = lines_of(explain(select(request, machine, table)));
  EXPECT_THAT(lines, ::testing::Contains(
                         "> fake-avx512  yes  first accepted, needs a build with cpu: weight-only, "
                         "symmetric"));
  EXPECT_THAT(lines, ::testing::Contains("  fake-all     yes  everything"));
}

// Each architecture gets the kernels that its instructions allow, and none of other machines.
TEST(Explain, ChoosesByArchitecture) {
  const auto chosen = [&](const char* machine, const Scheme& scheme) {
    const Selection s = select({.layer = fake::layer(scheme)}, *Machine::find(machine));
    return s.plan ? std::string(s.plan->backend->name) : "none";
  };
  const Scheme int8{kInt8StaticChannelSym, kInt8DynamicTokenSym},
      fp8{kFp8StaticChannelSym, kFp8DynamicTokenSym}, int4{int4_static_group(128), {}};
  EXPECT_EQ(chosen("h200", fp8), "cuda-sm90");
  EXPECT_EQ(chosen("b200", fp8), "cuda-sm80") << "wgmma is not there";
  EXPECT_EQ(chosen("l40s", fp8), "cuda-sm80");
  EXPECT_EQ(chosen("a100", fp8), "cuda-sm80") << "codes are multiplied as f16";
  EXPECT_EQ(chosen("a100", int8), "cuda-sm80");
  EXPECT_EQ(chosen("arc-b580", int4), "opencl-matrix");
  EXPECT_EQ(chosen("arc-b580", int8), "opencl-matrix-wide");
  EXPECT_EQ(chosen("arc-b580", fp8), "opencl-matrix-wide");
  EXPECT_EQ(chosen("mi300x", int4), "opencl-simt");
  EXPECT_EQ(chosen("xeon-amx", int8), "cpu-amx");
  EXPECT_EQ(chosen("xeon-avx512", int8), "cpu-avx512");
  EXPECT_EQ(chosen("desktop-avx2", int8), "cpu-avx2");
  EXPECT_EQ(chosen("x86-64", int8), "cpu");
}

TEST(Explain, MarksOnlyTheChosenRow) {
  const auto table = fake::table();
  const Selection s =
      select({.layer = fake::layer(kBF16Weight)}, *Machine::find("epyc-zen4"), table);
  const std::string text = explain(s);
  const std::vector<std::string> lines = lines_of(text);
  int marked = 0;
  for (const std::string& line : lines) marked += line.starts_with("> ");
  EXPECT_EQ(marked, 1);
  EXPECT_THAT(text, HasSubstr("> fake-avx512  yes  first accepted: weight-only, symmetric\n"));
  EXPECT_THAT(text, HasSubstr("  fake-all     yes  everything\n"));
  EXPECT_THAT(text, HasSubstr("  fake-cuda    no   "));
}

TEST(Explain, EveryReasonStatesNeedAndFact) {
  const auto table = fake::table();
  const Selection s = select({.layer = fake::layer(kF16Weight)}, *Machine::find("x86-64"), table);
  const std::string all = explain(s), first = explain(s, false);
  for (const Verdict& verdict : s.considered) {
    for (const Reason& reason : verdict.reasons) {
      const std::string sentence = " needs " + reason.need + "; " + reason.have + "\n";
      EXPECT_THAT(all, HasSubstr(sentence));
      if (&reason == &verdict.reasons.front()) {
        EXPECT_THAT(first, HasSubstr(sentence));
      }
    }
  }
  EXPECT_GT(lines_of(all).size(), 2 + table.size());
  EXPECT_EQ(lines_of(first).size(), 2 + table.size()) << "choice, layer, then one line per row";
}

TEST(Explain, FoldsRowsOfOtherDevicesUnlessAllReasonsAreRequested) {
  const auto table = fake::table();
  const Selection s = select({.layer = fake::layer(kBF16Weight), .platform = Platform::kCpu},
                             *Machine::find("epyc-zen4"), table);
  EXPECT_THAT(explain(s), HasSubstr("  fake-cuda    no   platform"));
  const std::vector<std::string> lines = lines_of(explain(s, false));
  EXPECT_EQ(lines.size(), 2 + table.size());
  EXPECT_EQ(lines.back(), "  not for device cpu: 1 backend of cuda");
  EXPECT_THAT(lines, ::testing::Not(::testing::Contains(HasSubstr("fake-cuda"))));
}

TEST(Explain, RefusedBackendByNameShowsItsOwnReasonsOnly) {
  const auto table = fake::table();
  const Selection s = select(
      {.layer = fake::layer(kBF16Weight), .backend = "fake-cuda", .platform = Platform::kCpu},
      *Machine::find("epyc-zen4"), table);
  const std::string text = explain(s, false);
  EXPECT_THAT(text, HasSubstr("  fake-cuda  no   platform"));
  EXPECT_THAT(text, HasSubstr("needs weights in i8")) << "every reason of the named row";
  EXPECT_THAT(text, HasSubstr("  not requested: 3 backends of cpu\n"));
  EXPECT_THAT(text, Not(HasSubstr("fake-avx512")));
}

TEST(Explain, StartsWithTheChoice) {
  const auto table = fake::table();
  const auto first_line = [&](const char* backend) {
    const Request request{.layer = fake::layer(kBF16Weight), .backend = backend};
    return lines_of(explain(select(request, *Machine::find("epyc-zen4"), table)))[0];
  };
  EXPECT_EQ(first_line("auto"), "→ fake-avx512, first accepted");
  EXPECT_EQ(first_line("fake-all"), "→ fake-all, first accepted");
  EXPECT_EQ(first_line("fake-cuda"), "→ none: every backend rejects it");
}

TEST(Explain, DescribesTheLayer) {
  const Selection experts =
      select({.layer = fake::layer(int4_static_group(128))}, *Machine::find("x86-64"));
  EXPECT_EQ(
      lines_of(explain(experts))[1],
      "int4-w4a16-g128 (int4 weights per group of 128, floating-point activations) · 16 experts, "
      "top-4, 256 → 128");
  LayerSpec dense = fake::layer(kBF16Weight);
  dense.linear = true;
  dense.num_experts = 1;
  EXPECT_EQ(lines_of(explain(select({.layer = dense}, *Machine::find("x86-64"))))[1],
            "bf16 (bf16 weights, not quantized) · 256 → 128");
}

TEST(Explain, MarksNothingWithoutAChoice) {
  const Selection s = select({.layer = fake::layer(kBF16Weight), .backend = "no-such-backend"},
                             *Machine::find("x86-64"));
  EXPECT_THAT(explain(s), Not(HasSubstr("> ")));
  EXPECT_THAT(explain(s), HasSubstr("'no-such-backend', requested by name"));
}

}  // namespace
}  // namespace moracle::explain_test
