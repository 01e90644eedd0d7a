#include "kernels/cpu/gemm/pair_claims.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

namespace moracle::cpu::pair_claims_test {
namespace {

constexpr int64_t kPairs = 5, kExperts = 60;

TEST(PairClaims, OneThreadAtATimeMultipliesAPair) {
  PairClaims claims(kPairs);
  claims.start(3);
  EXPECT_FALSE(claims.claim(2, 4)) << "expert 3 comes first";
  EXPECT_TRUE(claims.claim(2, 3));
  EXPECT_FALSE(claims.claim(2, 3));
  claims.release(2, 7);
  EXPECT_FALSE(claims.claim(2, 3)) << "done";
  EXPECT_TRUE(claims.claim(2, 7));
}

TEST(PairClaims, FurthestBehindIsNotClaimedAndHasTheFirstExpert) {
  PairClaims claims(3);
  claims.start(0);
  for (int64_t pair = 0; pair < 3; ++pair) ASSERT_TRUE(claims.claim(pair, 0));
  EXPECT_EQ(claims.furthest_behind(kExperts).pair, -1);
  claims.release(0, 9);
  claims.release(1, 4);
  EXPECT_EQ(claims.furthest_behind(kExperts).pair, 1);
  EXPECT_EQ(claims.furthest_behind(kExperts).expert, 4);
  EXPECT_EQ(claims.furthest_behind(4).pair, -1) << "both have all experts before 4";
}

// The first thread goes through all pairs, as an owner does. The others help, and the vectors have
// no lock of their own.
TEST(PairClaims, ThreadsTogetherMultiplyEachExpertOfEachPairOnceAndInOrder) {
  for (int turn = 0; turn < 20; ++turn) {
    PairClaims claims(kPairs);
    claims.start(0);
    std::vector<std::vector<int64_t>> done(kPairs);
    const auto multiply = [&](int64_t pair, int64_t expert) {
      if (!claims.claim(pair, expert)) return false;
      done[pair].push_back(expert);
      if (expert % 7 == pair) std::this_thread::yield();
      claims.release(pair, expert + 1);
      return true;
    };
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
      for (int64_t expert = 0; expert < kExperts; ++expert)
        for (int64_t pair = 0; pair < kPairs; ++pair) multiply(pair, expert);
    });
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        for (;;) {
          auto [pair, expert] = claims.furthest_behind(kExperts);
          if (pair < 0) return;
          while (expert < kExperts && multiply(pair, expert)) ++expert;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<int64_t> all(kExperts);
    std::iota(all.begin(), all.end(), 0);
    for (int64_t pair = 0; pair < kPairs; ++pair) EXPECT_EQ(done[pair], all) << "pair " << pair;
  }
}

}  // namespace
}  // namespace moracle::cpu::pair_claims_test
