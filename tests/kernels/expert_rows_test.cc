#include "kernels/cpu/gemm/expert_rows.h"

#include <gtest/gtest.h>

#include <vector>

namespace moracle::cpu::expert_rows_test {
namespace {

// Rows 0 to 9 belong to expert 0, none to 1, 10 to 12 to 2, 13 to 40 to 3.
constexpr int32_t kOffsets[] = {0, 10, 10, 13, 41};

std::vector<std::vector<int64_t>> items_of(const ExpertRows& rows, int64_t most_rows) {
  std::vector<std::vector<int64_t>> found;
  RowItems items(rows, most_rows);
  for (int64_t i = 0;; ++i) {
    const auto item = items.at(i);
    if (!item) return found;
    found.push_back({item->expert, item->first, item->past});
  }
}

TEST(ExpertRows, StartAtFirstRowOfRun) {
  GroupedRows given;
  given.expert_offsets = kOffsets;
  given.first_row = 5;
  given.num_rows = 20;
  const ExpertRows rows(given, 4);
  EXPECT_EQ(rows.count(), 20);
  EXPECT_EQ(rows.first(0), 0);
  EXPECT_EQ(rows.past(0), 5);
  EXPECT_EQ(rows.rows(1), 0);
  EXPECT_EQ(rows.first(2), 5);
  EXPECT_EQ(rows.past(3), 20);
  EXPECT_EQ(rows.all_rows(3), 28) << "those of other runs, too";
  EXPECT_EQ(rows.with_rows(1), 2);
  EXPECT_EQ(rows.with_rows(4), 4);
}

TEST(ExpertRows, EndAtTheLastOffset) {
  GroupedRows given;
  given.expert_offsets = kOffsets;
  given.num_rows = 100;
  EXPECT_EQ(ExpertRows(given, 4).count(), 41);
  given.first_row = 60;
  EXPECT_EQ(ExpertRows(given, 4).count(), 0);
}

TEST(ExpertRows, BelongToOneExpertWithoutOffsets) {
  GroupedRows given;
  given.num_rows = 7;
  const ExpertRows rows(given, 1);
  EXPECT_EQ(rows.count(), 7);
  EXPECT_EQ(items_of(rows, 16), (std::vector<std::vector<int64_t>>{{0, 0, 7}}));
}

TEST(RowItems, SplitEvenlyAndCoverEveryRow) {
  GroupedRows given;
  given.expert_offsets = kOffsets;
  given.num_rows = 41;
  const ExpertRows rows(given, 4);
  EXPECT_EQ(items_of(rows, 10),
            (std::vector<std::vector<int64_t>>{
                {0, 0, 10}, {2, 10, 13}, {3, 13, 22}, {3, 22, 31}, {3, 31, 41}}));
}

TEST(RowItems, AreHalvesAndQuartersInTheTail) {
  constexpr int32_t kEven[] = {0, 256, 512, 768, 1024};
  GroupedRows given;
  given.expert_offsets = kEven;
  given.num_rows = 1024;
  const ExpertRows rows(given, 4);
  RowItems items(rows, 320, 512);
  std::vector<int64_t> ends;
  for (int64_t i = 0; const auto item = items.at(i); ++i) ends.push_back(item->past);
  EXPECT_EQ(ends, (std::vector<int64_t>{256, 512, 640, 768, 832, 896, 960, 1024}));
}

TEST(RowItems, StayWholeInTheTailIfHalvesHaveFewRows) {
  GroupedRows given;
  given.expert_offsets = kOffsets;
  given.num_rows = 41;
  const ExpertRows rows(given, 4);
  const RowItems items(rows, 320, 0);
  EXPECT_EQ(items.of(0), 1);
  EXPECT_EQ(items.of(3), 1);
}

TEST(RowItems, AllowSkippingForwardOnly) {
  GroupedRows given;
  given.expert_offsets = kOffsets;
  given.num_rows = 41;
  const ExpertRows rows(given, 4);
  RowItems items(rows, 10);
  EXPECT_EQ(items.at(3)->first, 22);
  EXPECT_EQ(items.at(4)->first, 31);
  EXPECT_FALSE(items.at(5));
  EXPECT_FALSE(items.at(50));
}

}  // namespace
}  // namespace moracle::cpu::expert_rows_test
