// The largest of long rows on a GPU: in all bits what a CPU finds.
#include "kernels/cuda_test.h"
#include "kernels/largest_cases.h"

namespace moracle::cuda_largest_test {
namespace {

class CudaLargest : public CudaTest {};

TEST_F(CudaLargest, FindsTheLargestThatACpuFinds) {
  for (const testing::LargestCase& c : testing::kLargestCases) {
    const std::vector<float> numbers = testing::numbers_for(c);
    const Buffer rows = upload(numbers), ids = upload(std::vector<int32_t>(c.rows * c.k, -1)),
                 values = upload(std::vector<float>(c.rows * c.k)),
                 room = allocate(largest_room_bytes(c.rows, c.cols, c.k, DType::kBF16));
    expect_done(device_->ops().find_largest(Matrix::f32(rows.as<float>(), c.rows, c.cols), c.k,
                                            ids.as<int32_t>(), values.as<float>(),
                                            room.as<std::byte>(), {}));
    testing::expect_largest(c, numbers, download<int32_t>(ids), download<float>(values));
  }
}

TEST_F(CudaLargest, RefusesMoreOfARowThanThereAre) {
  const Buffer room = allocate(64);
  const Status refused = device_->ops().find_largest(
      Matrix::f32(room.as<float>(), 1, 10), 11, room.as<int32_t>(), room.as<float>(), nullptr, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
}

}  // namespace
}  // namespace moracle::cuda_largest_test
