// Tests that measured times of this machine decide the choice, and only if they exist.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moracle/oracle.h"
#include "oracle/fake_rows.h"

namespace moracle::tuned_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Tuned : public ::testing::Test {
 protected:
  Tuned() {
    request_.layer = fake::layer(kBF16Weight);
    machine_ = *Machine::find("xeon-avx512");
  }

  void measured(std::vector<TunedTime> times) {
    machine_.tuned = {{describe(request_.layer), std::move(times)}};
  }
  std::string_view chosen() const {
    const Selection selection = select(request_, machine_, table_);
    EXPECT_TRUE(selection.plan);
    return selection.plan->backend->name;
  }

  const std::array<Backend, 4> table_ = fake::table();
  Request request_;
  Machine machine_;
};

TEST_F(Tuned, ChoosesFastestRowAndShowsTimes) {
  EXPECT_EQ(chosen(), "fake-avx512");
  measured({{"fake-avx512", 1, 2000},
            {"fake-all", 1, 1500},
            {"fake-avx512", 16, 9000},
            {"fake-all", 16, 8000}});
  EXPECT_EQ(chosen(), "fake-all");
  const std::string text = explain(select(request_, machine_, table_));
  EXPECT_THAT(text, HasSubstr("yes  fastest here: everything"));
  EXPECT_THAT(text, HasSubstr("measured here: 1.5 ms at 1 token, 8 ms at 16"));
  EXPECT_THAT(text, HasSubstr("measured here: 2 ms at 1 token, 9 ms at 16"));
  EXPECT_THAT(text, Not(HasSubstr("first accepted")));
}

TEST_F(Tuned, KeepsVerdictOfEveryRow) {
  measured({{"fake-avx512", 1, 2000}, {"fake-all", 1, 1500}});
  const Selection selection = select(request_, machine_, table_);
  EXPECT_EQ(selection.considered.size(), table_.size());
  int accepted = 0;
  for (const Verdict& verdict : selection.considered) {
    accepted += verdict.accepted();
    EXPECT_EQ(verdict.tuned.empty(), !verdict.accepted());
    EXPECT_EQ(verdict.fastest, verdict.backend->name == "fake-all");
  }
  EXPECT_EQ(accepted, 2);
}

TEST_F(Tuned, WeighsGainsAndLossesOverAllowedTokenCounts) {
  // Twice as fast at one token, three times as slow at many.
  measured({{"fake-avx512", 1, 2000},
            {"fake-all", 1, 1000},
            {"fake-avx512", 256, 9000},
            {"fake-all", 256, 27000}});
  EXPECT_EQ(chosen(), "fake-avx512");
  request_.max_num_tokens = 100;
  EXPECT_EQ(chosen(), "fake-all");
}

TEST_F(Tuned, KeepsTableOrderWithoutMeasurements) {
  measured({{"fake-all", 1, 1}});  // the first accepted was not measured
  EXPECT_EQ(chosen(), "fake-avx512");
  measured({{"fake-avx512", 1, 10}, {"fake-avx512", 16, 10}, {"fake-all", 1, 1}});
  EXPECT_EQ(chosen(), "fake-avx512") << "measured at fewer numbers of tokens";
  measured({{"fake-avx512", 1, 10}, {"fake-all", 1, 1}});
  machine_.tuned[0].layer = "another";
  EXPECT_EQ(chosen(), "fake-avx512");
}

TEST_F(Tuned, ExcludesFasterRowsThatDoNotServe) {
  measured({{"fake-amx", 1, 0.1}, {"fake-avx512", 1, 10}, {"fake-all", 1, 20}});
  EXPECT_EQ(chosen(), "fake-avx512");
  request_.backend = "fake-all";
  EXPECT_EQ(chosen(), "fake-all");
}

TEST_F(Tuned, KeepsTableOrderBeyondMeasuredTokens) {
  measured({{"fake-avx512", 1, 10}, {"fake-all", 1, 1}});
  EXPECT_EQ(chosen(), "fake-all");
  Request first = request_;
  for (const auto& change : std::vector<void (*)(Request&)>{
           [](Request& r) { r.parallel.ep_size = 2; },
           [](Request& r) { r.parallel.format = ActivationFormat::kBatched; },
           [](Request& r) { r.deterministic = true; }}) {
    request_ = first;
    change(request_);
    for (const Verdict& verdict : select(request_, machine_, table_).considered) {
      EXPECT_TRUE(verdict.tuned.empty());
      EXPECT_FALSE(verdict.fastest);
    }
  }
}

}  // namespace
}  // namespace moracle::tuned_test
