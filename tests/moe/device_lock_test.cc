// Tests several threads on one device. Whole calls are serialized, so results equal those of single
// calls.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "conformance/conformance.h"
#include "layer_on_rows.h"
#include "support/must.h"

namespace moracle::device_lock_test {
namespace {

using testing::odd_layer;
using testing::random_batch;
using testing::TokenBatch;

constexpr int64_t kTokens = 48;
constexpr int kRounds = 5;

const char* const kSchemes[] = {"bf16", "int8-w8a8", "int4-w4a16-g32"};

std::shared_ptr<Device> cpu() {
  return *open_device("cpu", 2);
}

// Layers whose panels and rows are large enough to need the device's scratch.
LayerSpec layer(const Scheme& scheme) {
  LayerSpec spec = odd_layer(scheme);
  spec.hidden_size = 256;
  spec.intermediate_size = 160;
  return spec;
}

// A layer on a row, with its own inputs and the output of a single run.
struct Subject {
  std::string name;
  FusedMoe moe;
  TokenBatch batch;
  std::vector<float> alone = {};

  std::vector<float> apply() {
    std::vector<float> output(batch.hidden.size(), NAN);
    const int64_t hidden = moe.plan().layer.hidden_size;
    // Not must(): threads call this, and an exception there ends the process.
    const Status done =
        moe.apply(Matrix::f32(batch.hidden.data(), batch.tokens, hidden), {batch.ids.data()},
                  {batch.weights.data()}, Matrix::f32(output.data(), batch.tokens, hidden));
    EXPECT_TRUE(done) << name << ": " << done.error().to_string();
    return output;
  }
};

Selection choose(const LayerSpec& spec, const std::string& row) {
  return select(
      {.layer = spec, .max_num_tokens = kTokens, .backend = row, .platform = Platform::kCpu},
      Machine::here());
}

std::optional<Subject> subject(const Scheme& scheme, const std::string& row, uint64_t seed,
                               const std::shared_ptr<Workspace>& workspace) {
  const LayerSpec spec = layer(scheme);
  const Selection selection = choose(spec, row);
  if (!selection.plan) return {};
  Subject made{
      row + " " + name(scheme),
      testing::must(FusedMoe::make(conformance::random_weights(spec, seed), selection, workspace)),
      random_batch(spec, kTokens, static_cast<uint32_t>(seed))};
  made.alone = made.apply();
  return made;
}

// Every scheme on every row that serves it here.
std::vector<Subject> subjects(const std::shared_ptr<Device>& device, bool shared_workspace) {
  std::vector<Subject> all;
  auto workspace = std::make_shared<Workspace>(device);
  for (const char* text : kSchemes) {
    const Scheme scheme = *parse_scheme(text);
    for (const std::string& row : testing::cpu_rows(layer(scheme))) {
      if (!shared_workspace) workspace = std::make_shared<Workspace>(device);
      if (auto made = subject(scheme, row, all.size() + 1, workspace))
        all.push_back(*std::move(made));
    }
  }
  return all;
}

// Counts the calls among `rounds` whose bits differ from a single run.
int differing(Subject& one, int rounds) {
  int differ = 0;
  for (int round = 0; round < rounds; ++round) differ += one.apply() != one.alone ? 1 : 0;
  return differ;
}

class ConcurrentApply : public ::testing::TestWithParam<bool> {};

TEST_P(ConcurrentApply, TwoLayersOnOneDeviceMatchSingleRunsBitForBit) {
  std::vector<Subject> all = subjects(cpu(), GetParam());
  ASSERT_GE(all.size(), 6u);
  // Each layer runs concurrently with its neighbour and with a layer of another scheme.
  for (const size_t distance : {size_t{1}, all.size() / 2}) {
    for (size_t i = 0; i + distance < all.size(); ++i) {
      Subject &one = all[i], &other = all[i + distance];
      int of_other = 0;
      std::thread thread([&] { of_other = differing(other, kRounds); });
      const int of_one = differing(one, kRounds);
      thread.join();
      EXPECT_EQ(of_one, 0) << one.name << " beside " << other.name;
      EXPECT_EQ(of_other, 0) << other.name << " beside " << one.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Workspaces, ConcurrentApply, ::testing::Bool(), [](const auto& param) {
  return std::string(param.param ? "Shared" : "Own");
});

// New layers make scratch and workspace grow, which moves them.
TEST(ConcurrentMake, KeepsResultsOfOtherLayers) {
  const std::shared_ptr<Device> device = cpu();
  auto workspace = std::make_shared<Workspace>(device);
  auto serving = subject(*parse_scheme("int8-w8a8"), "auto", 1, workspace);
  ASSERT_TRUE(serving);
  std::atomic<bool> stop{false};
  int differ = 0;
  std::thread thread([&] {
    do {
      differ += differing(*serving, 1);
    } while (!stop);
  });
  for (int64_t size = 1; size <= 4; ++size) {
    LayerSpec spec = layer(*parse_scheme("bf16"));
    spec.intermediate_size *= size;
    EXPECT_TRUE(FusedMoe::make(
        conformance::random_weights(spec, 3),
        select({.layer = spec, .max_num_tokens = kTokens * size, .platform = Platform::kCpu},
               Machine::here()),
        workspace));
  }
  stop = true;
  thread.join();
  EXPECT_EQ(differ, 0);
}

TEST(ConcurrentSwap, ShowsOldOrNewWeightsNeverMixed) {
  const Scheme scheme = *parse_scheme("int8-w8a8");
  auto serving = subject(scheme, "auto", 1, std::make_shared<Workspace>(cpu()));
  ASSERT_TRUE(serving);
  const LayerSpec spec = layer(scheme);
  const auto swap = [&](uint64_t seed) {
    auto packed = serving->moe.pack(conformance::random_weights(spec, seed));
    ASSERT_TRUE(packed) << packed.error().to_string();
    EXPECT_TRUE(serving->moe.swap(*std::move(packed)));
  };
  swap(2);
  const std::vector<float> other = serving->apply();
  ASSERT_NE(other, serving->alone);
  std::atomic<bool> stop{false};
  int mixed = 0;
  std::thread thread([&] {
    do {
      const std::vector<float> got = serving->apply();
      mixed += got != serving->alone && got != other ? 1 : 0;
    } while (!stop);
  });
  for (uint64_t round = 0; round < 12; ++round) swap(1 + round % 2);
  stop = true;
  thread.join();
  EXPECT_EQ(mixed, 0);
}

TEST(DeviceLock, BlocksOtherThreadsUntilItEnds) {
  const std::shared_ptr<Device> device = cpu();
  auto one = subject(*parse_scheme("bf16"), "cpu", 1, std::make_shared<Workspace>(device));
  ASSERT_TRUE(one);
  std::atomic<bool> called{false};
  std::thread thread;
  {
    const DeviceLock outer = device->lock();
    const DeviceLock inner = device->lock();
    EXPECT_EQ(one->apply(), one->alone) << "the thread that holds it goes on";
    thread = std::thread([&] {
      one->apply();
      called = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(called);
  }
  thread.join();
  EXPECT_TRUE(called);
}

// Kernel errors of one thread stay pending until a synchronize() of any thread.
TEST(DeviceLock, SeparatesErrorsWhenHeldOverApplyAndSynchronize) {
  const std::shared_ptr<Device> device = cpu();
  std::vector<Subject> two;
  for (uint64_t seed : {1, 2}) {
    auto made = subject(*parse_scheme("bf16"), "cpu", seed, std::make_shared<Workspace>(device));
    ASSERT_TRUE(made);
    two.push_back(*std::move(made));
  }
  two[1].batch.ids[3] = 77;
  int errors[2] = {};
  const auto work = [&](int which) {
    for (int round = 0; round < kRounds; ++round) {
      const DeviceLock lock = device->lock();
      two[which].apply();
      errors[which] += device->synchronize() ? 0 : 1;
    }
  };
  std::thread thread(work, 1);
  work(0);
  thread.join();
  EXPECT_EQ(errors[0], 0);
  EXPECT_EQ(errors[1], kRounds);
}

}  // namespace
}  // namespace moracle::device_lock_test
