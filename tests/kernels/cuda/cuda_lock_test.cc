// Tests layers on several streams of one GPU from several threads. Layers that share a workspace
// run one after another.
#include <cuda_runtime_api.h>

#include <atomic>
#include <thread>

#include "conformance/conformance.h"
#include "kernels/cuda/cuda_test.h"
#include "moracle/moe.h"

namespace moracle::cuda_lock_test {
namespace {

constexpr int64_t kTokens = 64, kHidden = 1024, kTopK = 4;
constexpr int kRounds = 40;

class CudaLock : public CudaTest {
 protected:
  struct Subject {
    FusedMoe moe;
    Buffer hidden, ids, weights, output;
    std::vector<float> alone = {};
  };

  void SetUp() override {
    CudaTest::SetUp();
    if (!device_) return;
    for (cudaStream_t& stream : streams_)
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    workspace_ = std::make_shared<Workspace>(device_);
    for (uint64_t seed : {1, 2}) make(seed);
  }
  void TearDown() override {
    for (cudaStream_t stream : streams_) {
      if (stream != nullptr) static_cast<void>(cudaStreamDestroy(stream));
    }
  }

  void make(uint64_t seed) {
    Request request;
    request.layer.name = "layer";
    request.layer.num_experts = 16;
    request.layer.hidden_size = kHidden;
    request.layer.intermediate_size = 512;
    request.layer.top_k = kTopK;
    request.layer.scheme = *parse_scheme(seed == 1 ? "int8-w8a8" : "bf16");
    request.max_num_tokens = kTokens;
    request.platform = Platform::kCuda;
    auto moe = FusedMoe::make(conformance::random_weights(request.layer, seed),
                              select(request, Machine::here()), workspace_);
    ASSERT_TRUE(moe) << moe.error().to_string();
    const conformance::Inputs in =
        conformance::random_inputs(request, kTokens, conformance::Spread::kHoles, seed);
    two_.push_back({*std::move(moe), upload(to_bf16(in.hidden)), upload(in.ids), upload(in.weights),
                    allocate(kTokens * kHidden * sizeof(float))});
    apply(two_.back(), {});
    two_.back().alone = output_of(two_.back(), {});
  }
  static void apply(Subject& one, Stream stream) {
    expect_done(one.moe.apply(bf16_matrix(one.hidden, kTokens, kHidden), {one.ids.as<int32_t>()},
                              {one.weights.as<float>()},
                              Matrix::f32(one.output.as<float>(), kTokens, kHidden), stream));
  }
  std::vector<float> output_of(const Subject& one, Stream stream) {
    std::vector<float> host(kTokens * kHidden);
    expect_done(device_->download(host.data(), one.output.data(), one.output.bytes(), stream));
    expect_done(device_->synchronize(stream));
    return host;
  }
  // Runs several calls on one stream and counts those whose bits differ from a single run.
  int differing(Subject& one, Stream stream) {
    int differ = 0;
    for (int round = 0; round < kRounds; ++round) {
      for (int call = 0; call < 4; ++call) apply(one, stream);
      differ += output_of(one, stream) != one.alone ? 1 : 0;
    }
    return differ;
  }

  std::shared_ptr<Workspace> workspace_;
  std::vector<Subject> two_;
  cudaStream_t streams_[2] = {};
};

TEST_F(CudaLock, LayersSharingWorkspaceKeepBitsOnTwoStreamsAndThreads) {
  ASSERT_EQ(two_.size(), 2u);
  for (const Stream first : {Stream{streams_[0]}, Stream{}}) {
    int of_other = 0;
    std::thread thread([&] { of_other = differing(two_[1], {streams_[1]}); });
    EXPECT_EQ(differing(two_[0], first), 0);
    thread.join();
    EXPECT_EQ(of_other, 0);
  }
}

// The host does not wait: one thread alternates between streams without synchronizing.
TEST_F(CudaLock, OneThreadMayAlternateBetweenStreams) {
  ASSERT_EQ(two_.size(), 2u);
  for (int round = 0; round < kRounds; ++round) {
    apply(two_[0], {streams_[0]});
    apply(two_[1], {});
    apply(two_[0], {streams_[1]});
    apply(two_[1], {streams_[0]});
  }
  EXPECT_EQ(output_of(two_[0], {streams_[1]}), two_[0].alone);
  EXPECT_EQ(output_of(two_[1], {streams_[0]}), two_[1].alone);
}

TEST_F(CudaLock, ReplaysAreSerializedWithCallsOnOtherStreams) {
  ASSERT_EQ(two_.size(), 2u);
  auto graph = device_->record([&]() -> Status {
    apply(two_[0], {});
    return {};
  });
  ASSERT_TRUE(graph) << graph.error().to_string();
  int of_other = 0;
  std::thread thread([&] { of_other = differing(two_[1], {streams_[1]}); });
  int differ = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (int call = 0; call < 4; ++call) expect_done((*graph)->replay());
    differ += output_of(two_[0], {}) != two_[0].alone ? 1 : 0;
  }
  thread.join();
  EXPECT_EQ(differ, 0);
  EXPECT_EQ(of_other, 0);
}

TEST_F(CudaLock, ReplaysKeepTheirMemoryWhenTheWorkspaceGrows) {
  ASSERT_EQ(two_.size(), 2u);
  auto graph = device_->record([&]() -> Status {
    apply(two_[0], {});
    return {};
  });
  ASSERT_TRUE(graph) << graph.error().to_string();
  const std::byte* const before = workspace_->data();
  ASSERT_TRUE(workspace_->reserve(2 * workspace_->bytes()));
  ASSERT_NE(workspace_->data(), before);
  expect_done((*graph)->replay());
  apply(two_[1], {});
  EXPECT_EQ(output_of(two_[0], {}), two_[0].alone);
  EXPECT_EQ(output_of(two_[1], {}), two_[1].alone);
}

TEST_F(CudaLock, LegacyStreamIsAStreamOfTheCaller) {
  ASSERT_EQ(two_.size(), 2u);
  apply(two_[0], {cudaStreamLegacy});
  apply(two_[1], {streams_[0]});
  EXPECT_EQ(output_of(two_[0], {cudaStreamLegacy}), two_[0].alone);
}

TEST_F(CudaLock, DestroyedStreamDoesNotBlockNextCall) {
  ASSERT_EQ(two_.size(), 2u);
  apply(two_[0], {streams_[0]});
  ASSERT_EQ(cudaStreamDestroy(streams_[0]), cudaSuccess);
  streams_[0] = nullptr;
  apply(two_[1], {});
  EXPECT_EQ(output_of(two_[1], {}), two_[1].alone);
  expect_done(device_->synchronize());
}

// One thread records. Work of other threads must not enter the graph.
TEST_F(CudaLock, RecordingBlocksOtherThreads) {
  ASSERT_EQ(two_.size(), 2u);
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    while (!stop) {
      const Buffer some = allocate(4096);
      apply(two_[1], {});
    }
  });
  for (int round = 0; round < 10; ++round) {
    auto graph = device_->record([&]() -> Status {
      apply(two_[0], {});
      return {};
    });
    EXPECT_TRUE(graph) << graph.error().to_string();
    if (!graph) break;
    expect_done((*graph)->replay());
    EXPECT_EQ(output_of(two_[0], {}), two_[0].alone);
  }
  stop = true;
  thread.join();
}

}  // namespace
}  // namespace moracle::cuda_lock_test
