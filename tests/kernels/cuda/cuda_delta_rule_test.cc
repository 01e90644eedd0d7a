// Tests the gated delta rule on a GPU: chunks that do not fit into the scratch at once, and
// agreement of its kernels.
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/cuda/cuda_test.h"
#include "kernels/ops.h"
#include "support/floats.h"

namespace moracle::cuda_delta_rule_test {
namespace {

class CudaDeltaRule : public CudaTest {
 protected:
  static constexpr int64_t kDim = 128, kHeads = 128, kCols = (2 + kHeads) * kDim,
                           kSize = kHeads * kDim * kDim;

  std::vector<float> normal(int64_t count) { return testing::normal_floats(random_, count, 1); }

  std::mt19937 random_{5};
};

double relative_difference(const std::vector<float>& got, const std::vector<float>& want) {
  double apart = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    apart += std::pow(double{got[i]} - want[i], 2);
    size += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(apart / size);
}

TEST_F(CudaDeltaRule, ChunksInTurnMatchSingleTokens) {
  const std::vector<int64_t> counts = {2100, 17, 1, 40};
  const int64_t tokens = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  GatedDeltaShape shape{1, kHeads, kDim, kDim, kHeads, 0};
  const size_t scratch_bytes = gated_delta_scratch_bytes(shape, tokens, DType::kBF16);
  const auto chunks = static_cast<size_t>(tokens / 64) + counts.size();
  ASSERT_LT(scratch_bytes, chunks * kHeads * kDeltaTileBytes) << "all chunks fit";
  const Buffer qkv = upload(to_bf16(normal(tokens * kCols))),
               ba = upload(to_bf16(normal(tokens * 2 * kHeads))), a_log = upload(normal(kHeads)),
               dt_bias = upload(std::vector<float>(kHeads, -4)), scratch = allocate(scratch_bytes);
  std::vector<int32_t> first = {0};
  for (const int64_t count : counts) first.push_back(first.back() + static_cast<int32_t>(count));
  std::vector<float> outs[2], states[2];
  for (const bool batch_invariant : {false, true}) {
    shape.batch_invariant = batch_invariant;
    std::vector<Buffer> after;
    std::vector<std::byte*> pointers;
    for (size_t s = 0; s < counts.size(); ++s) {
      after.push_back(upload(std::vector<float>(kSize, 7)));
      pointers.insert(pointers.end(), {nullptr, after.back().as<std::byte>()});
    }
    const Buffer table = upload(pointers), first_token = upload(first),
                 out = allocate(tokens * kHeads * kDim * 2);
    Batch batch;
    batch.num_tokens = tokens, batch.num_sequences = static_cast<int64_t>(counts.size());
    batch.most_tokens = 2100, batch.fewest_tokens = 1;
    batch.first_token = first_token.as<int32_t>();
    batch.states = table.as<std::byte*>();
    const Status done = kernel_device(*device_).ops().gated_delta(
        bf16_matrix(qkv, tokens, kCols), bf16_matrix(ba, tokens, 2 * kHeads), a_log.as<float>(),
        dt_bias.as<float>(), shape, batch, bf16_matrix(out, tokens, kHeads * kDim),
        scratch.as<std::byte>(), {});
    ASSERT_TRUE(done) << done.error().to_string();
    outs[batch_invariant] = from_bf16(download<uint16_t>(out));
    for (const Buffer& state : after) {
      const auto values = download<float>(state);
      states[batch_invariant].insert(states[batch_invariant].end(), values.begin(), values.end());
    }
  }
  EXPECT_LT(relative_difference(outs[0], outs[1]), 8e-3);
  EXPECT_LT(relative_difference(states[0], states[1]), 8e-3);
}

TEST_F(CudaDeltaRule, RefusesKeysThatNoKernelHolds) {
  const Buffer memory = allocate(1 << 16);
  const GatedDeltaShape shape{1, 1, 264, 8, 1, 0};
  Batch batch;
  batch.num_tokens = batch.num_sequences = batch.most_tokens = batch.fewest_tokens = 1;
  const Status refused = kernel_device(*device_).ops().gated_delta(
      bf16_matrix(memory, 1, 536), bf16_matrix(memory, 1, 2), memory.as<float>(),
      memory.as<float>(), shape, batch, bf16_matrix(memory, 1, 8), nullptr, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().to_string(),
            "gated DeltaNet: needs keys of at most 256 columns on cuda; they have 264");
}

}  // namespace
}  // namespace moracle::cuda_delta_rule_test
