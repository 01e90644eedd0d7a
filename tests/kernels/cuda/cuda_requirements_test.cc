#include <gtest/gtest.h>

#include "kernels/cuda/device/requirements.h"
#include "oracle/machine/cuda_driver.h"

namespace moracle::cuda_requirements_test {
namespace {

TEST(Requirements, TellAnAbsentDriverFromAnOldOne) {
  EXPECT_EQ(cuda::no_gpu(0, 13000, "insufficient"),
            "this machine has no driver for NVIDIA GPUs: libcuda.so.1 does not load");
  EXPECT_EQ(cuda::no_gpu(12080, 13010, "insufficient"),
            "the driver is for CUDA 12.8; this build needs a driver for CUDA 13 or later");
}

TEST(Requirements, KeepTheMessageOfCudaForOtherReasons) {
  EXPECT_EQ(cuda::no_gpu(13000, 13010, "cudaErrorNoDevice: no CUDA-capable device is detected"),
            "cudaErrorNoDevice: no CUDA-capable device is detected");
}

TEST(Requirements, ListCapabilitiesWithAPoint) {
  EXPECT_EQ(cuda::capability_list({80, 89, 90, 120}), "8.0, 8.9, 9.0, 12.0");
}

}  // namespace
}  // namespace moracle::cuda_requirements_test
