// Shared by the OpenCL tests: the device, or the reason to skip.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/opencl/device/opencl_device.h"

namespace moracle {

class OpenClTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::shared_ptr<Device>> opened = open_device("opencl", 1);
    if (!opened) GTEST_SKIP() << opened.error().to_string();
    device_ = *std::move(opened);
  }

  Buffer allocate(size_t bytes) {
    Result<Buffer> buffer = device_->allocate(bytes);
    EXPECT_TRUE(buffer) << buffer.error().to_string();
    return buffer ? *std::move(buffer) : Buffer();
  }
  template <class T>
  Buffer upload(const std::vector<T>& host) {
    Buffer buffer = allocate(host.size() * sizeof(T));
    expect_done(device_->upload(buffer.data(), host.data(), buffer.bytes()));
    return buffer;
  }
  template <class T>
  std::vector<T> download(const Buffer& buffer) {
    std::vector<T> host(buffer.bytes() / sizeof(T));
    expect_done(device_->download(host.data(), buffer.data(), buffer.bytes()));
    expect_done(device_->synchronize());
    return host;
  }
  static void expect_done(const Status& status) {
    EXPECT_TRUE(status) << status.error().to_string();
  }
  const opencl::Queue& queue() const { return static_cast<OpenClDevice&>(*device_).queue(); }

  std::shared_ptr<Device> device_;
};

}  // namespace moracle
