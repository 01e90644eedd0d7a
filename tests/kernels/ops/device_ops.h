// Fixture of tests of operations: each test runs on every device of test_devices().
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "moracle/device.h"
#include "support/device.h"
#include "support/floats.h"

namespace moracle::testing {

struct TestDevice {
  std::string label;  ///< last part of the test's name; a GPU's starts with "Cuda" (CMakeLists.txt)
  std::string name;   ///< as open_device() reads it
  int threads = 0;    ///< of a CPU
};
inline std::ostream& operator<<(std::ostream& out, const TestDevice& device) {
  return out << device.label;
}

/// Add a new device here.
inline std::vector<TestDevice> test_devices() {
  return {
      {"CpuOneThread", "cpu", 1},
      {"CpuThreeThreads", "cpu", 3},
#ifdef MORACLE_WITH_CUDA
      {"Cuda", "cuda"},
#endif
#ifdef MORACLE_WITH_OPENCL
      {"OpenCl", testing::opencl_name()},
#endif
  };
}

/// Skips the test if the device is not in this machine.
class DeviceOpsTest : public ::testing::TestWithParam<TestDevice> {
 protected:
  void SetUp() override {
    Result<std::shared_ptr<Device>> opened =
        testing::open_test_device(GetParam().name, GetParam().threads);
    if (!opened && opened.error().kind == ErrorKind::kUnsupported)
      GTEST_SKIP() << opened.error().to_string();
    ASSERT_TRUE(opened) << opened.error().to_string();
    device_ = *std::move(opened);
  }

  Ops& ops() { return kernel_device(*device_).ops(); }
  bool is_cpu() const { return device_->platform() == Platform::kCpu; }
  /// The type of activations on this device.
  DType dtype() const { return device_->activation_dtype(); }

  // ---- device memory, which lives until the test ends ----

  std::byte* allocate(size_t bytes) {
    Result<Buffer> buffer = device_->allocate(bytes);
    EXPECT_TRUE(buffer) << buffer.error().to_string();
    if (!buffer) return nullptr;
    return buffers_.emplace_back(*std::move(buffer)).as<std::byte>();
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    std::byte* const memory = allocate(values.size() * sizeof(T));
    expect_done(device_->upload(memory, values.data(), values.size() * sizeof(T)));
    return reinterpret_cast<T*>(memory);
  }
  template <class T>
  std::vector<T> download(const T* from, int64_t count) {
    std::vector<T> values(count);
    expect_done(device_->download(values.data(), from, values.size() * sizeof(T)));
    expect_done(device_->synchronize());
    return values;
  }

  // ---- matrices ----

  /// `values` [rows, cols], rounded to `dtype`.
  Matrix matrix(const std::vector<float>& values, int64_t rows, int64_t cols, DType dtype) {
    void* const data = dtype == DType::kF32 ? static_cast<void*>(upload(values))
                                            : static_cast<void*>(upload(half_bits(dtype, values)));
    return {data, dtype, rows, cols, cols};
  }
  Matrix matrix(const std::vector<float>& values, int64_t rows, int64_t cols) {
    return matrix(values, rows, cols, dtype());
  }
  /// A matrix of NaNs. Its rows start `stride` elements apart; 0: `cols`.
  Matrix blank(int64_t rows, int64_t cols, DType dtype, int64_t stride = 0) {
    stride = stride == 0 ? cols : stride;
    const int64_t bytes = rows * stride * bits(dtype) / 8;
    return {upload(std::vector<uint8_t>(bytes, 0xff)), dtype, rows, cols, stride};
  }
  Matrix blank(int64_t rows, int64_t cols) { return blank(rows, cols, dtype()); }
  /// All elements of `from`, those between the rows included.
  std::vector<float> floats(const Matrix& from) {
    const int64_t count = from.rows * from.stride;
    if (from.dtype == DType::kF32) return download(static_cast<const float*>(from.data), count);
    std::vector<float> values;
    for (const uint16_t half : download(static_cast<const uint16_t*>(from.data), count))
      values.push_back(float_of_half(from.dtype, half));
    return values;
  }
  /// Columns [first, first + count) of `whole`.
  static Matrix columns(Matrix whole, int64_t first, int64_t count) {
    whole.data = static_cast<std::byte*>(whole.data) + first * bits(whole.dtype) / 8;
    whole.cols = count;
    return whole;
  }

  // ---- numbers ----

  /// Normal numbers that the device's activations hold exactly.
  std::vector<float> normal(int64_t count, float size = 1) {
    return rounded(normal_floats(random_, count, size));
  }
  std::vector<float> rounded(std::vector<float> values) const {
    return rounded_to(dtype(), std::move(values));
  }

  // ---- bounds ----

  /// The largest error of an f32 result. `cpu` is the bound on a CPU. The exponentials and sums of
  /// other devices may differ by 1e-5 of the result.
  double f32_bound(double want, double cpu) const {
    return is_cpu() ? cpu : cpu + 1e-5 * std::fabs(want);
  }
  /// f32_bound() for a result that is stored as an activation.
  double bound(double want, double cpu) const {
    if (dtype() == DType::kF32) return f32_bound(want, cpu);
    return f32_bound(want, cpu) + 0x1p-8 * std::fabs(want) + 1e-30;
  }

  static void expect_done(const Status& status) {
    EXPECT_TRUE(status) << status.error().to_string();
  }

  std::mt19937 random_{42};
  std::shared_ptr<Device> device_;

 private:
  std::vector<Buffer> buffers_;
};

inline std::string device_label(const ::testing::TestParamInfo<TestDevice>& info) {
  return info.param.label;
}

}  // namespace moracle::testing

/// Runs the tests of `suite` on every device.
#define MORACLE_ON_EVERY_DEVICE(suite)                                              \
  INSTANTIATE_TEST_SUITE_P(Devices, suite,                                          \
                           ::testing::ValuesIn(::moracle::testing::test_devices()), \
                           ::moracle::testing::device_label)
