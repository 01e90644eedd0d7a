// Shared by the OpenCL tests: the device, or the reason to skip.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/one_device_test.h"
#include "kernels/opencl/device/opencl_device.h"

namespace moracle {

class OpenClTest : public OneDeviceTest {
 protected:
  OpenClTest() : OneDeviceTest("opencl", 1) {}
  const opencl::Queue& queue() const { return static_cast<OpenClDevice&>(*device_).queue(); }
};

}  // namespace moracle
