#include "kernels/cuda/device/device_error.h"

#include <algorithm>

#include "base/text.h"
#include "kernels/cuda/device/cuda_check.h"

namespace moracle::cuda {
DeviceErrors::~DeviceErrors() {
  static_cast<void>(cudaFree(device_));
  static_cast<void>(cudaFreeHost(host_));
}

Status DeviceErrors::open(cudaStream_t stream) {
  constexpr size_t kBytes = kDeviceErrorKinds * sizeof(DeviceErrorCell);
  MORACLE_CUDA(cudaMalloc(reinterpret_cast<void**>(&device_), kBytes));
  MORACLE_CUDA(cudaMallocHost(reinterpret_cast<void**>(&host_), 2 * kBytes));
  std::fill_n(host_ + kDeviceErrorKinds, kDeviceErrorKinds, DeviceErrorCell{});
  return reset(stream);
}

Status DeviceErrors::reset(cudaStream_t stream) {
  MORACLE_CUDA(cudaMemcpyAsync(device_, host_ + kDeviceErrorKinds,
                               kDeviceErrorKinds * sizeof(DeviceErrorCell), cudaMemcpyHostToDevice,
                               stream));
  MORACLE_CUDA(cudaStreamSynchronize(stream));
  return {};
}

Status DeviceErrors::take(cudaStream_t stream) {
  MORACLE_CUDA(cudaMemcpyAsync(host_, device_, kDeviceErrorKinds * sizeof(DeviceErrorCell),
                               cudaMemcpyDeviceToHost, stream));
  if (Status waited = check(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); !waited) {
    Error error = std::move(waited).error();
    error.fact += str("; the last launched kernel is '", last_launched(), "'");
    return error;
  }
  for (int kind = 0; kind < kDeviceErrorKinds; ++kind) {
    if (host_[kind].first == DeviceErrorCell::kNone) continue;
    const Error error = error_of(static_cast<DeviceErrorKind>(kind), host_[kind]);
    MORACLE_CHECK(reset(stream));
    return error;
  }
  return {};
}

}  // namespace moracle::cuda
