// Tests layers on a GPU under CUDA graphs. A graph can capture apply, and replays give the bits of
// calls. A token's bits depend only on the token.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/text.h"
#include "conformance/conformance.h"
#include "kernels/cuda/cuda_test.h"
#include "moracle/moe.h"

namespace moracle::cuda_graph_test {
namespace {

constexpr int64_t kTokens = 9, kHidden = 130, kTopK = 3;

class CudaGraphTest : public CudaTest {
 protected:
  struct Batch {
    Buffer hidden, ids, weights, output;
    int64_t tokens;
  };

  void TearDown() override { release(); }
  void release() {
    if (graph_run_ != nullptr) static_cast<void>(cudaGraphExecDestroy(graph_run_));
    if (graph_ != nullptr) static_cast<void>(cudaGraphDestroy(graph_));
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
    stream_ = nullptr, graph_ = nullptr, graph_run_ = nullptr;
  }

  static Request request_of(const Scheme& scheme, const char* backend) {
    Request request;
    request.layer.name = "layer";
    request.layer.num_experts = 8;
    request.layer.hidden_size = kHidden;
    request.layer.intermediate_size = 70;
    request.layer.top_k = kTopK;
    request.layer.scheme = scheme;
    request.max_num_tokens = kTokens;
    request.backend = backend;
    request.platform = Platform::kCuda;
    return request;
  }
  Result<FusedMoe> make(const Request& request) {
    return FusedMoe::make(conformance::random_weights(request.layer, 5),
                          select(request, Machine::here()), device_);
  }
  // Tokens [first, first + count) of the random tokens of `seed`.
  Batch batch(const Request& request, uint64_t seed, int64_t first = 0, int64_t count = kTokens) {
    const conformance::Inputs all =
        conformance::random_inputs(request, kTokens, conformance::Spread::kHoles, seed);
    auto part = [&](const auto& of, int64_t each) {
      return std::decay_t<decltype(of)>(of.begin() + first * each,
                                        of.begin() + (first + count) * each);
    };
    return {upload(to_bf16(part(all.hidden, kHidden))), upload(part(all.ids, kTopK)),
            upload(part(all.weights, kTopK)), allocate(count * kHidden * sizeof(float)), count};
  }
  void apply(FusedMoe& moe, const Batch& b, Stream stream = {}) {
    expect_done(moe.apply(bf16_matrix(b.hidden, b.tokens, kHidden), {b.ids.as<int32_t>()},
                          {b.weights.as<float>()},
                          Matrix::f32(b.output.as<float>(), b.tokens, kHidden), stream));
  }

  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t graph_run_ = nullptr;
};

constexpr const char* kBackends[] = {"cuda-reference", "cuda-sm80"};

TEST_F(CudaGraphTest, ReplaysMatchCallsForOtherTokensToo) {
  for (const auto& [backend, scheme] : {std::pair{0, "bf16"},
                                        {0, "int4-w4a16-g32"},
                                        {0, "int8-w8a8"},
                                        {0, "fp8-w8a8-block128x128"},
                                        {0, "fp8-w8a8-tensor-static"},
                                        {1, "bf16"},
                                        {1, "int4-w4a16-g32"},
                                        {1, "int8-w8a8"},
                                        {1, "fp8-w8a8-block128x128"},
                                        {1, "fp8-w8a8-tensor-static"}}) {
    SCOPED_TRACE(str(kBackends[backend], " ", scheme));
    const Request request = request_of(*parse_scheme(scheme), kBackends[backend]);
    Result<FusedMoe> moe = make(request);
    ASSERT_TRUE(moe) << moe.error().to_string();
    const Batch first = batch(request, 1), second = batch(request, 2);
    apply(*moe, first);
    const std::vector<float> want_first = download<float>(first.output);
    apply(*moe, second);
    const std::vector<float> want_second = download<float>(second.output);
    ASSERT_NE(want_first, want_second);
    EXPECT_TRUE(std::any_of(want_first.begin(), want_first.end(), [](float y) { return y != 0; }));

    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
    apply(*moe, first, {stream_});
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&graph_run_, graph_, 0), cudaSuccess);
    const std::vector<float> nothing(want_first.size(), -1);
    for (const auto& [from, want] : {std::pair{&first, &want_first}, {&second, &want_second}}) {
      // The graph reads and writes the addresses of the first batch.
      if (from != &first) {
        expect_done(device_->copy(first.hidden.data(), from->hidden.data(), from->hidden.bytes()));
        expect_done(device_->copy(first.ids.data(), from->ids.data(), from->ids.bytes()));
        expect_done(
            device_->copy(first.weights.data(), from->weights.data(), from->weights.bytes()));
      }
      expect_done(device_->upload(first.output.data(), nothing.data(), first.output.bytes()));
      expect_done(device_->synchronize());
      ASSERT_EQ(cudaGraphLaunch(graph_run_, stream_), cudaSuccess);
      expect_done(device_->synchronize({stream_}));
      EXPECT_EQ(download<float>(first.output), *want);
    }
    release();
  }
}

TEST_F(CudaGraphTest, TokenBitsDependOnlyOnToken) {
  for (const char* backend : kBackends) {
    for (const Scheme& scheme : conformance::schemes()) {
      SCOPED_TRACE(str(backend, " ", name(scheme)));
      Request request = request_of(scheme, backend);
      request.deterministic = true;
      // Tensor cores multiply neither f32 nor fp8 by integers. NVFP4 and stored scales of int8
      // activations have no kernels.
      const auto& key = scheme.activation;
      const bool unlike = key && key->dtype == DType::kF8E4M3 && scheme.weight.dtype != key->dtype;
      const bool stored = key && !key->dynamic && key->dtype == DType::kI8;
      const bool may_refuse =
          scheme.weight.dtype == DType::kF32 || unlike || stored || scheme.weight.group.cols == 16;
      if (may_refuse && !select(request, Machine::here()).plan) continue;
      Result<FusedMoe> moe = make(request);
      ASSERT_TRUE(moe) << moe.error().to_string();
      const Batch all = batch(request, 3);
      apply(*moe, all);
      const std::vector<float> together = download<float>(all.output);
      for (int64_t t : {int64_t{0}, int64_t{4}, kTokens - 1}) {
        const Batch one = batch(request, 3, t, 1);
        apply(*moe, one);
        const std::vector<float> alone = download<float>(one.output);
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + t * kHidden));
      }
    }
  }
}

}  // namespace
}  // namespace moracle::cuda_graph_test
