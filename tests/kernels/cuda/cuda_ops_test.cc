// Tests arguments that only a GPU rejects. A CPU reads a table of any number format and does not
// check the types of activations.
#include "kernels/cuda/cuda_test.h"
#include "kernels/kernel_device.h"

namespace moracle::cuda_ops_test {
namespace {

using CudaOpsTest = CudaTest;

TEST_F(CudaOpsTest, RejectsCodesWhereActivationsAreFloats) {
  const Buffer codes = allocate(16), ids = upload(std::vector<int32_t>{0}), half = allocate(16);
  Ops& ops = kernel_device(*device_).ops();
  const Status converted =
      ops.convert({codes.data(), DType::kI8, 1, 4, 4}, {half.data(), DType::kF16, 1, 4, 4}, {});
  ASSERT_FALSE(converted);
  EXPECT_EQ(converted.error().kind, ErrorKind::kUnsupported);
  const Status embedded = ops.embed({codes.as<std::byte>(), DType::kI8, {2, 4}}, ids.as<int32_t>(),
                                    bf16_matrix(half, 1, 4), {});
  ASSERT_FALSE(embedded);
  EXPECT_EQ(embedded.error().kind, ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace moracle::cuda_ops_test
