// Tests requested features beyond plain matrices, for every row, scheme and known machine. A row
// without the feature adds one reason and keeps all its other reasons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/text.h"
#include "conformance/conformance.h"
#include "oracle/fake_rows.h"
#include "support/sample.h"

namespace moracle::features_test {
namespace {

using ::testing::HasSubstr;

struct Wish {
  const char* rule;
  Feature feature;
  void (*ask)(Request&);
  const char* have;  ///< what the reason says is there
};

const Wish kWishes[] = {
    {"lora", Feature::kLora, [](Request& r) { r.lora_rank = 16; },
     "adapters of rank up to 16 are requested"},
    {"activation-format", Feature::kBatched,
     [](Request& r) { r.parallel.format = ActivationFormat::kBatched; },
     "they are batched by expert"},
    {"expert-parallel", Feature::kExpertParallel, [](Request& r) { r.parallel.ep_size = 3; },
     "they are spread over 3 ranks"},
    {"deterministic", Feature::kDeterministic, [](Request& r) { r.deterministic = true; },
     "batch-invariant results are requested"},
};

/// Every reason but those of one rule, as text. Whether float activations would serve depends on
/// the whole request.
std::vector<std::string> reasons_but(const Verdict& verdict, std::string_view rule) {
  std::vector<std::string> texts;
  for (const Reason& reason : verdict.reasons) {
    if (reason.rule == rule) continue;
    const std::string need = reason.need.substr(0, reason.need.find(" (activations="));
    texts.push_back(str(reason.rule, ": ", need, "; ", reason.have));
  }
  return texts;
}

/// Features that every row serves, and features that some rows or no rows serve.
std::vector<Scheme> all_schemes() {
  std::vector<Scheme> all = conformance::schemes();
  QuantKey by_batch = kFp8DynamicTokenSym;
  by_batch.group = GroupShape{};
  all.push_back({kFp8StaticChannelSym, by_batch});
  all.push_back({{DType::kF8E5M2, kPerRow}, {}});
  all.push_back({int4_static_group(33), {}});
  return all;
}

void expect_one_more_reason(const Verdict& before, const Verdict& after, const Wish& wish) {
  const Backend& row = *after.backend;
  const bool lacks = missing(wish.feature, row.features) != Feature::kNone;
  EXPECT_EQ(reasons_but(after, wish.rule), reasons_but(before, ""));
  EXPECT_EQ(after.reasons.size(), before.reasons.size() + (lacks ? 1 : 0));
  EXPECT_EQ(after.accepted(), before.accepted() && !lacks);
  for (const Reason& reason : after.reasons) {
    if (reason.rule != wish.rule) continue;
    EXPECT_THAT(reason.have, HasSubstr(wish.have));
  }
}

// Adapters and batched activations pass no gate by themselves. A row rejects an
// unsupported scheme with or without adapters. A row without adapters rejects them in every scheme.
TEST(RequestFeatures, AddReasonToEveryRowThatLacksThemAndRemoveNone) {
  const std::vector<Backend> real(backends().begin(), backends().end());
  const auto picky = fake::table();
  for (const std::vector<Backend>& table : {real, {picky.begin(), picky.end()}}) {
    for (const Machine& machine : Machine::known()) {
      for (const Scheme& scheme : all_schemes()) {
        const Request plain{.layer = fake::layer(scheme)};
        const Selection before = select(plain, machine, table);
        testing::Sample sample(machine.name + name(scheme));
        for (const Wish& wish : kWishes) {
          if (!sample.takes()) continue;
          SCOPED_TRACE(str(machine.name, ", ", name(scheme), ", ", wish.rule));
          Request wished = plain;
          wish.ask(wished);
          const Selection after = select(wished, machine, table);
          ASSERT_EQ(after.considered.size(), before.considered.size());
          for (size_t i = 0; i < table.size(); ++i) {
            ASSERT_EQ(after.considered[i].backend, before.considered[i].backend);
            expect_one_more_reason(before.considered[i], after.considered[i], wish);
          }
          if (after.plan) {
            EXPECT_EQ(missing(wish.feature, after.plan->backend->features), Feature::kNone);
          } else if (before.plan) {
            EXPECT_THAT(after.chosen().error().fact, HasSubstr(str(wish.rule, ": needs ")));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace moracle::features_test
