// Batches of nccl_ep between two GPUs of this machine, beside gathers of NCCL. The ranks are
// threads, each with a GPU of its own.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>

#include "base/scalar.h"
#include "moracle/moracle.h"
#include "parallel/dispatch/dispatched_moe.h"
#include "ranks_of_threads.h"
#include "support/must.h"
#include "timing/random_layer.h"

namespace moracle::cuda_batches_test {
namespace {

using ::testing::HasSubstr;
using testing::must;
using testing::on_ranks;

constexpr int64_t kHidden = 1024, kExperts = 16, kTopK = 4, kMost = 32;

class CudaBatches : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus < 2)
      GTEST_SKIP() << "needs two NVIDIA GPUs; there are " << gpus;
    const ExchangeSelection selection = select_exchange({Platform::kCuda, 2, "nccl-ep"});
    if (selection.chosen == nullptr) GTEST_SKIP() << explain(selection);
  }
};

// One rank's GPU with a layer on it.
struct Gpu {
  std::shared_ptr<Group> group;
  std::shared_ptr<Device> device;
  LayerSpec layer;

  Gpu(std::shared_ptr<Group> of, const char* scheme)
      : group(std::move(of)),
        device(must(open_device("cuda:" + std::to_string(group->rank()), 1))) {
    layer.name = "layer";
    layer.num_experts = kExperts, layer.top_k = kTopK;
    layer.hidden_size = kHidden, layer.intermediate_size = 256;
    layer.scheme = must(parse_scheme(scheme));
  }
  DispatchedMoe make(const char* row) const {
    Request request;
    request.layer = layer;
    request.parallel.ep_size = group->size(), request.parallel.ep_rank = group->rank();
    request.max_num_tokens = kMost * group->size();
    request.platform = Platform::kCuda, request.device_index = static_cast<int>(group->rank());
    std::vector<ExpertMap> maps;
    for (int64_t r = 0; r < group->size(); ++r)
      maps.push_back(must(ExpertMap::place(kExperts, group->size(), r)));
    FusedMoe moe = must(
        FusedMoe::make(timing::random_layer(layer, 3), select(request, Machine::here()), device));
    return must(DispatchedMoe::make(std::move(moe), std::move(maps), group,
                                    must(open_exchange(group, device, row)), device));
  }
  template <class T>
  Buffer put(const std::vector<T>& values) const {
    Buffer buffer = must(device->allocate(values.size() * sizeof(T)));
    must(device->upload(buffer.data(), values.data(), buffer.bytes()));
    return buffer;
  }
};

// Tokens of a rank on its GPU. The last of several has no experts.
struct Tokens {
  Buffer hidden, ids, weights, output;
  int64_t count;

  Tokens(const Gpu& gpu, int64_t num_tokens) : count(num_tokens) {
    std::mt19937 engine(static_cast<uint32_t>(gpu.group->rank() + 10 * count));
    std::normal_distribution<float> normal;
    std::vector<uint16_t> values(count * kHidden);
    for (uint16_t& value : values) value = float_to_bf16(normal(engine));
    std::vector<int32_t> chosen, experts(kExperts);
    for (int32_t e = 0; e < kExperts; ++e) experts[e] = e;
    std::vector<float> shares;
    for (int64_t t = 0; t < count; ++t) {
      std::shuffle(experts.begin(), experts.end(), engine);
      for (int64_t j = 0; j < kTopK; ++j) {
        chosen.push_back(count > 1 && t == count - 1 ? -1 : experts[j]);
        shares.push_back(0.1f + 0.1f * static_cast<float>(j));
      }
    }
    hidden = gpu.put(values), ids = gpu.put(chosen), weights = gpu.put(shares);
    output = gpu.put(std::vector<uint16_t>(values.size(), 0x7fc0));
  }
  Status apply(DispatchedMoe& layer) const {
    const auto rows = [this](const Buffer& at) {
      return Matrix{at.data(), DType::kBF16, count, kHidden, kHidden};
    };
    return layer.apply_gathered(rows(hidden), {ids.as<int32_t>()}, {weights.as<float>()},
                                rows(output));
  }
  std::vector<float> results(Device& device) const {
    std::vector<uint16_t> bits(count * kHidden);
    must(device.download(bits.data(), output.data(), output.bytes()));
    must(device.synchronize());
    std::vector<float> values;
    for (const uint16_t value : bits) values.push_back(bf16_to_float(value));
    return values;
  }
};

// Both round to bf16: batches the result of each expert, gathers the sum of each rank.
void expect_close(const std::vector<float>& got, const std::vector<float>& wanted) {
  float largest = 0, difference = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    largest = std::max(largest, std::abs(wanted[i]));
    // Not a number is no small difference.
    const float here = std::abs(got[i] - wanted[i]);
    difference = here <= difference ? difference : here;
  }
  EXPECT_GT(largest, 0.0f);
  EXPECT_LE(difference, largest / 64);
}

TEST_P(CudaBatches, GiveWhatGathersGive) {
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const Gpu gpu(group, GetParam());
    DispatchedMoe batched = gpu.make("nccl-ep"), gathered = gpu.make("nccl");
    for (const int64_t count : {int64_t{1}, int64_t{5}, kMost}) {
      const Tokens tokens(gpu, count);
      must(tokens.apply(gathered));
      const auto wanted = tokens.results(*gpu.device);
      must(tokens.apply(batched));
      const auto got = tokens.results(*gpu.device);
      expect_close(got, wanted);
      if (count == 1) continue;
      EXPECT_EQ(std::vector<float>(got.end() - kHidden, got.end()), std::vector<float>(kHidden));
    }
  });
}

TEST_P(CudaBatches, GraphGivesTheBitsOfACall) {
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const Gpu gpu(group, GetParam());
    DispatchedMoe batched = gpu.make("nccl-ep");
    const Tokens tokens(gpu, kMost);
    must(tokens.apply(batched));
    const auto wanted = tokens.results(*gpu.device);
    const auto graph = must(gpu.device->record([&] { return tokens.apply(batched); }));
    for (int again = 0; again < 20; ++again) must(graph->replay());
    EXPECT_EQ(tokens.results(*gpu.device), wanted);
  });
}

INSTANTIATE_TEST_SUITE_P(Schemes, CudaBatches,
                         ::testing::Values("bf16", "int4-w4a16-g128", "fp8-w8a8-block128x128"),
                         [](const auto& scheme) {
                           std::string name = scheme.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The kernel traps after the host's error: each of these tests needs a process of its own, as ctest
// gives it. Rank 1 is silent, or ends.
class CudaBatchesWithoutRank : public CudaBatches {
 protected:
  void expect_error(bool ends, const char* text) {
    std::string error;
    double seconds = 0;
    std::atomic<bool> over{false};
    on_ranks(
        2,
        [&](const std::shared_ptr<Group>& group) {
          const Gpu gpu(group, GetParam());
          DispatchedMoe batched = gpu.make("nccl-ep");
          if (group->rank() == 1) {
            while (!ends && !over) std::this_thread::yield();
            return;
          }
          const Tokens tokens(gpu, 1);
          const auto start = std::chrono::steady_clock::now();
          Status done = tokens.apply(batched);
          if (done) done = gpu.device->synchronize();
          seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
          error = done ? "no error" : done.error().to_string();
          over = true;
        },
        8);
    EXPECT_THAT(error, HasSubstr(text));
    EXPECT_LT(seconds, 30);
  }
};
TEST_P(CudaBatchesWithoutRank, WaitForASilentRankEndsAtTheTimeout) {
  expect_error(false, "rank 1: needs an answer within 8 s (timeout_seconds)");
}
TEST_P(CudaBatchesWithoutRank, WaitForARankThatEndedNamesIt) {
  expect_error(true, "rank 1: needs to take part until the end");
}
INSTANTIATE_TEST_SUITE_P(Bf16, CudaBatchesWithoutRank, ::testing::Values("bf16"));

}  // namespace
}  // namespace moracle::cuda_batches_test
