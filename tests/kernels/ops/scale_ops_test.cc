// Tests the scales of experts, capped and masked logits on every device against computation in
// double.
#include "kernels/ops/device_ops.h"

namespace moracle::scale_ops_test {
namespace {

class ScaleOps : public testing::DeviceOpsTest {};

TEST_P(ScaleOps, WeightIsMultipliedByTheScaleOfItsExpert) {
  // A few slots, and more slots than one block or work-group processes.
  for (const int64_t count : {6, 5003}) {
    const std::vector<float> scales = testing::normal_floats(random_, 7);
    std::vector<float> want = testing::normal_floats(random_, count);
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(random_() % 8) - 1;
    float* const weights = upload(want);
    expect_done(ops().scale_by_expert(upload(ids), count, upload(scales), weights, {}));
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] >= 0) want[i] *= scales[static_cast<size_t>(ids[i])];
    EXPECT_EQ(download(weights, count), want);
  }
}

TEST_P(ScaleOps, EachSlotKeepsTheIdOnOneOfTheCopies) {
  const int64_t num_experts = 5, top_k = 3;
  const std::vector<int32_t> number = {1, 2, 3, 1, 2};
  for (const int64_t tokens : {1, 7, 2001}) {
    std::vector<int32_t> ids(static_cast<size_t>(tokens * top_k));
    for (int32_t& id : ids) id = static_cast<int32_t>(random_() % (num_experts + 1)) - 1;
    std::vector<int64_t> kept(ids.size());
    for (int32_t copy = -1; copy < 3; ++copy) {  // -1: a rank without copies
      std::vector<int32_t> table = number;
      for (const int32_t count : number) table.push_back(copy < count ? copy : -1);
      int32_t* const own = upload(ids);
      expect_done(ops().keep_own(own, tokens, top_k, upload(table), num_experts, own, {}));
      const std::vector<int32_t> got = download(own, tokens * top_k);
      for (size_t i = 0; i < ids.size(); ++i) {
        const int32_t id = ids[i];
        if (id < 0 || number[id] == 1) {
          ASSERT_EQ(got[i], id);
        } else {
          const bool is_here = (static_cast<int64_t>(i) / top_k + id) % number[id] == copy;
          ASSERT_EQ(got[i], is_here ? id : -1);
          kept[i] += got[i] >= 0 ? 1 : 0;
        }
      }
    }
    for (size_t i = 0; i < ids.size(); ++i)
      EXPECT_EQ(kept[i], ids[i] >= 0 && number[ids[i]] > 1 ? 1 : 0);
  }
}

TEST_P(ScaleOps, CapIsTheHyperbolicTangent) {
  const int64_t rows = 3, cols = 1030;
  std::vector<float> x = testing::normal_floats(random_, rows * cols, 40);
  x[0] = 0, x[1] = 1e30f, x[2] = -1e30f, x[3] = 1e-20f;
  for (const float cap : {30.0f, 0.5f}) {
    // Rows are padded; the columns between them keep their values.
    Matrix all = matrix(x, rows, cols, DType::kF32), some = columns(all, 0, cols - 5);
    expect_done(ops().cap(some, cap, {}));
    const std::vector<float> got = floats(all);
    for (size_t i = 0; i < x.size(); ++i) {
      const bool between = static_cast<int64_t>(i) % cols >= cols - 5;
      const double want = between ? x[i] : cap * std::tanh(double{x[i]} / cap);
      ASSERT_NEAR(got[i], want, between ? 0 : f32_bound(want, 1e-6 * std::fabs(want))) << i;
    }
  }
}

TEST_P(ScaleOps, ForbiddenColumnsBecomeNegativeInfinity) {
  const int64_t rows = 5;
  for (const int64_t cols : {1, 31, 64, 1025}) {
    const int64_t words = (cols + 31) / 32;
    const std::vector<float> x = testing::normal_floats(random_, rows * (cols + 3));
    std::vector<uint32_t> allowed(static_cast<size_t>(rows * words));
    for (uint32_t& word : allowed) word = static_cast<uint32_t>(random_());
    std::fill(allowed.begin(), allowed.begin() + words, 0);
    Matrix all = matrix(x, rows, cols + 3, DType::kF32), some = columns(all, 0, cols);
    expect_done(ops().keep_allowed(some, upload(allowed), {}));
    const std::vector<float> got = floats(all);
    for (size_t i = 0; i < x.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / (cols + 3),
                 col = static_cast<int64_t>(i) % (cols + 3);
      const bool kept = col >= cols || (allowed[row * words + col / 32] >> (col % 32) & 1) != 0;
      ASSERT_EQ(got[i], kept ? x[i] : -std::numeric_limits<float>::infinity()) << i;
    }
  }
}

MORACLE_ON_EVERY_DEVICE(ScaleOps);

}  // namespace
}  // namespace moracle::scale_ops_test
