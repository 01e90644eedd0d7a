// The watchdog for waits on other ranks. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "parallel/cuda/rank_watch.h"
#include "ranks_of_threads.h"

namespace moracle::cuda_rank_watch_test {
namespace {

using ::testing::HasSubstr;
using testing::on_ranks;

Error broken() {
  return {ErrorKind::kIo, "", "exchange 'nccl'", "ncclAllReduce to succeed", "ncclRemoteError"};
}
Status fine() {
  return {};
}

TEST(RankWatch, FindsNothingWhileAllRanksRun) {
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    int stops = 0;
    RankWatch watch("nccl", group, fine, [&] { ++stops; });
    EXPECT_TRUE(watch.look(1));
    EXPECT_TRUE(watch.status());
    EXPECT_EQ(stops, 0);
    (void)group->barrier().ok();
  });
}

TEST(RankWatch, NamesTheRankBehindAnErrorOfTheLibrary) {
  std::string error;
  on_ranks(2, [&](std::shared_ptr<Group> group) {
    if (group->rank() == 1) return;
    RankWatch watch(
        "nccl", group, [] { return Status(broken()); }, [] {});
    error = watch.look(0).error().to_string();
  });
  EXPECT_THAT(error, HasSubstr("rank 1: needs to take part until the end"));
}

TEST(RankWatch, ReportsTheLibrarysErrorIfAllRanksRun) {
  std::string errors[2];
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    RankWatch watch(
        "nccl", group, [] { return Status(broken()); }, [] {});
    errors[group->rank()] = watch.look(0).error().to_string();
    (void)group->barrier().ok();
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("ncclRemoteError"));
}

TEST(RankWatch, NamesTheSilentRankAfterTheTimeout) {
  std::string error;
  std::atomic<bool> over{false};
  on_ranks(
      2,
      [&](const std::shared_ptr<Group>& group) {
        if (group->rank() == 1) {
          while (!over) std::this_thread::yield();
          return;
        }
        RankWatch watch("cuda-peer", group, fine, [] {});
        EXPECT_TRUE(watch.look(0.2));
        error = watch.look(0.4).error().to_string();
        over = true;
      },
      0.3);
  EXPECT_THAT(error, HasSubstr("rank 1: needs an answer within 0.3 s (timeout_seconds)"));
}

TEST(RankWatch, ReportsGpuThatDoesNotFinishWhileAllRanksAnswer) {
  std::string errors[2];
  on_ranks(
      2,
      [&](const std::shared_ptr<Group>& group) {
        RankWatch watch("cuda-peer", group, fine, [] {});
        errors[group->rank()] = watch.look(6).error().to_string();
      },
      5);
  for (const std::string& error : errors)
    EXPECT_THAT(error,
                HasSubstr("exchange 'cuda-peer': needs to end within 5 s (timeout_seconds)"));
}

TEST(RankWatch, StopsOnceAndKeepsTheFirstError) {
  const auto group = *open_group({});
  int stops = 0;
  RankWatch watch("nccl", group, fine, [&] { ++stops; });
  EXPECT_FALSE(watch.fail(broken()));
  watch.stop();
  EXPECT_EQ(stops, 1);
  EXPECT_THAT(watch.look(0).error().to_string(), HasSubstr("ncclRemoteError"));

  RankWatch other("cuda-peer", group, fine, [] {});
  other.stop();  // because of the first one's error
  EXPECT_FALSE(other.status());
}

}  // namespace
}  // namespace moracle::cuda_rank_watch_test
