// Tests the assignment of rows to experts on every device against its definition: a stable sort.
#include <tuple>

#include "kernels/ops/device_ops.h"

namespace moracle::rows_test {
namespace {

struct Planned {
  std::vector<int32_t> offsets, row_token, slot_row, row_slot;
};

/// One expert per slot, and the local experts. An empty map: all are local, under their own
/// numbers.
struct Choices {
  std::vector<int32_t> ids;
  int64_t top_k, num_experts;
  std::vector<int32_t> map = {};
  int64_t num_local = -1;  ///< -1: num_experts

  int64_t local() const { return num_local < 0 ? num_experts : num_local; }
  int32_t local_of(int32_t id) const {
    if (id < 0 || id >= num_experts) return -1;
    return map.empty() ? id : map[id];
  }
};

class RowsTest : public testing::DeviceOpsTest {
 protected:
  template <class Enqueue>
  Planned planned(int64_t experts, int64_t slots, const Enqueue& enqueue) {
    const std::vector<int32_t> unset(slots, -9);
    const RowPlan plan{upload(std::vector<int32_t>(experts + 1, -9)), upload(unset), upload(unset),
                       upload(unset)};
    expect_done(enqueue(plan));
    status_ = device_->synchronize();
    return {download(plan.expert_offsets, experts + 1), download(plan.row_token, slots),
            download(plan.slot_row, slots), download(plan.row_slot, slots)};
  }
  Planned planned(const Choices& c) {
    const auto slots = static_cast<int64_t>(c.ids.size());
    return planned(c.local(), slots, [&](const RowPlan& plan) {
      return ops().plan_rows(upload(c.ids), slots / c.top_k, c.top_k, c.num_experts,
                             c.map.empty() ? nullptr : upload(c.map), c.local(), plan, {});
    });
  }
  Status status_;  // of the synchronize after the operation
};
class PlanRows : public RowsTest {};
class PlanBatchedRows : public RowsTest {};

// The definition: expert by expert, token by token.
void expect_plan(const Planned& p, const Choices& c) {
  int32_t row = 0;
  for (int32_t e = 0; e < c.local(); ++e) {
    ASSERT_EQ(p.offsets[e], row) << "expert " << e;
    for (size_t slot = 0; slot < c.ids.size(); ++slot) {
      if (c.local_of(c.ids[slot]) != e) continue;
      ASSERT_EQ(p.slot_row[slot], row) << "slot " << slot;
      ASSERT_EQ(p.row_token[row], static_cast<int32_t>(slot) / c.top_k);
      ASSERT_EQ(p.row_slot[row], static_cast<int32_t>(slot));
      ++row;
    }
  }
  ASSERT_EQ(p.offsets[c.local()], row);
  for (size_t slot = 0; slot < c.ids.size(); ++slot) {
    if (c.local_of(c.ids[slot]) < 0) {
      ASSERT_EQ(p.slot_row[slot], -1) << "slot " << slot;
    }
  }
}

TEST_P(PlanRows, SortsByExpertAndKeepsTheOrderOfTokens) {
  for (auto [num_experts, top_k, tokens] : {std::tuple{8, 2, 50},
                                            {1, 1, 5},
                                            {128, 8, 64},
                                            {128, 8, 300},
                                            {3, 3, 7},
                                            {64, 4, 1},
                                            {32, 8, 1037},
                                            {64, 8, 3001},
                                            {600, 6, 100}}) {
    SCOPED_TRACE(::testing::Message() << num_experts << " experts, " << tokens << " tokens");
    Choices c{std::vector<int32_t>(tokens * top_k), top_k, num_experts};
    for (int32_t& id : c.ids) id = static_cast<int32_t>(random_() % num_experts);
    expect_plan(planned(c), c);
    expect_done(status_);
  }
}

// GPUs read four ids at once if these are aligned.
TEST_P(PlanRows, IdsWithoutAlignment) {
  Choices c{std::vector<int32_t>(8 * 301), 8, 32};
  for (int32_t& id : c.ids) id = static_cast<int32_t>(random_() % 32);
  std::vector<int32_t> stored(1, 5);
  stored.insert(stored.end(), c.ids.begin(), c.ids.end());
  const auto slots = static_cast<int64_t>(c.ids.size());
  const int32_t* const ids = upload(stored) + 1;
  expect_plan(planned(c.local(), slots,
                      [&](const RowPlan& plan) {
                        return ops().plan_rows(ids, slots / c.top_k, c.top_k, c.num_experts,
                                               nullptr, c.local(), plan, {});
                      }),
              c);
  expect_done(status_);
}

// Every third expert is on another rank. The others are local in reverse order.
TEST_P(PlanRows, FollowsExpertMapAndSkipsMinusOne) {
  for (auto [num_experts, top_k, tokens] :
       {std::tuple{8, 2, 50}, {1, 1, 5}, {128, 8, 300}, {600, 6, 100}, {96, 8, 3001}}) {
    SCOPED_TRACE(::testing::Message() << num_experts << " experts, " << tokens << " tokens");
    Choices c{std::vector<int32_t>(tokens * top_k), top_k, num_experts};
    for (int32_t& id : c.ids) id = static_cast<int32_t>(random_() % (num_experts + 1)) - 1;
    expect_plan(planned(c), c);
    c.map.assign(num_experts, -1);
    c.num_local = 0;
    for (int e = num_experts - 1; e >= 0; --e) {
      if (e % 3 != 1) c.map[e] = static_cast<int32_t>(c.num_local++);
    }
    expect_plan(planned(c), c);
    expect_done(status_);
  }
}

// A rank may have no experts.
TEST_P(PlanRows, GivesNoRowsWithoutLocalExperts) {
  const Planned p = planned({{0, 2, -1, 1, 2, 0}, 2, 3, {-1, -1, -1}, 0});
  expect_done(status_);
  EXPECT_EQ(p.offsets, std::vector<int32_t>{0});
  EXPECT_EQ(p.slot_row, std::vector<int32_t>(6, -1));
}

// An invalid id is not counted from the end and not mapped to another expert.
TEST_P(PlanRows, GivesNoRowToInvalidExpertIdsAndReportsThemOnce) {
  const Choices c{{-1, 0, 3, 2, -1, -1, 4, 1, 2147483647, -2147483647 - 1, 3, 100}, 2, 4};
  const Planned p = planned(c);
  ASSERT_FALSE(status_);
  EXPECT_EQ(status_.error().place, "topk_ids");
  EXPECT_EQ(status_.error().fact, "choice 0 of token 3 is 4");
  expect_done(device_->synchronize());
  expect_plan(p, c);
  EXPECT_EQ(p.offsets[4], 5);
}

TEST_P(PlanRows, GivesNoRowToMinusOne) {
  const std::vector<int32_t> none(8, -1);
  const Planned p = planned({none, 2, 4});
  expect_done(status_);
  EXPECT_EQ(p.offsets, std::vector<int32_t>(5, 0));
  EXPECT_EQ(p.slot_row, none);
}

TEST_P(PlanRows, AcceptsOneExpertForAllTokens) {
  for (int32_t expert : {0, 6, 7}) {
    const Choices c{std::vector<int32_t>(40, expert), 4, 8};
    const Planned p = planned(c);
    expect_plan(p, c);
    EXPECT_EQ(p.offsets[expert + 1] - p.offsets[expert], 40);
  }
}

TEST_P(PlanRows, OfNoTokensIsEmpty) {
  EXPECT_EQ(planned({{}, 2, 4}).offsets, std::vector<int32_t>(5, 0));
}

MORACLE_ON_EVERY_DEVICE(PlanRows);

TEST_P(PlanBatchedRows, ClampsCountsAndReportsFirstWrongOne) {
  const int64_t most = 700;
  const std::vector<int32_t> counts = {3, 0, 700, 1, -5, 701}, rows = {3, 0, 700, 1, 0, 700};
  const Planned p = planned(6, 6 * most, [&](const RowPlan& plan) {
    return ops().plan_batched_rows(upload(counts), 6, most, plan, {});
  });
  ASSERT_FALSE(status_);
  EXPECT_EQ(status_.error().place, "expert_num_tokens");
  EXPECT_EQ(status_.error().fact, "expert 4 has -5");
  int32_t row = 0;
  for (int32_t e = 0; e < 6; ++e) {
    ASSERT_EQ(p.offsets[e], row) << "expert " << e;
    for (int32_t i = 0; i < most; ++i) {
      const auto slot = static_cast<int32_t>(e * most + i);
      ASSERT_EQ(p.slot_row[slot], i < rows[e] ? row : -1) << "slot " << slot;
      if (i >= rows[e]) continue;
      ASSERT_EQ(p.row_slot[row], slot);
      ASSERT_EQ(p.row_token[row], slot);
      ++row;
    }
  }
  EXPECT_EQ(p.offsets[6], row);
}

MORACLE_ON_EVERY_DEVICE(PlanBatchedRows);

}  // namespace
}  // namespace moracle::rows_test
