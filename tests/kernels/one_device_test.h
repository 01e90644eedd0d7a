// Fixture of tests of one kind of device: opens it, or skips with the reason.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "moracle/device.h"
#include "support/device.h"

namespace moracle {

class OneDeviceTest : public ::testing::Test {
 protected:
  explicit OneDeviceTest(std::string name, int threads = 0)
      : name_(std::move(name)), threads_(threads) {}
  void SetUp() override {
    Result<std::shared_ptr<Device>> opened = testing::open_test_device(name_, threads_);
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

  std::shared_ptr<Device> device_;

 private:
  const std::string name_;
  const int threads_;
};

}  // namespace moracle
