// Compares top-k of long rows on a GPU with the CPU, bit for bit.
#include "kernels/cuda_test.h"
#include "kernels/top_k_cases.h"

namespace moracle::cuda_top_k_test {
namespace {

class CudaTopK : public CudaTest {};

TEST_F(CudaTopK, MatchesCpu) {
  for (const testing::TopKCase& c : testing::kTopKCases) {
    const std::vector<float> numbers = testing::numbers_for(c);
    const Buffer rows = upload(numbers), ids = upload(std::vector<int32_t>(c.rows * c.k, -1)),
                 values = upload(std::vector<float>(c.rows * c.k)),
                 room = allocate(top_k_scratch_bytes(c.rows, c.cols, c.k, DType::kBF16));
    expect_done(device_->ops().find_top_k(Matrix::f32(rows.as<float>(), c.rows, c.cols), c.k,
                                          ids.as<int32_t>(), values.as<float>(),
                                          room.as<std::byte>(), {}));
    testing::expect_top_k(c, numbers, download<int32_t>(ids), download<float>(values));
  }
}

TEST_F(CudaTopK, RejectsKLargerThanRow) {
  const Buffer room = allocate(64);
  const Status refused = device_->ops().find_top_k(
      Matrix::f32(room.as<float>(), 1, 10), 11, room.as<int32_t>(), room.as<float>(), nullptr, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
}

}  // namespace
}  // namespace moracle::cuda_top_k_test
