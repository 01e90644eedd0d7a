#include "kernels/cuda/device/device_error.h"

#include <algorithm>

#include "base/text.h"
#include "kernels/cuda/device/cuda_check.h"

namespace moracle::cuda {
DeviceErrors::~DeviceErrors() {
  static_cast<void>(cudaFreeHost(host_));
}

Status DeviceErrors::open(Buffer cells, cudaStream_t stream) {
  cells_ = std::move(cells);
  MORACLE_CUDA(cudaMallocHost(reinterpret_cast<void**>(&host_), 2 * kBytes));
  std::fill_n(host_ + kDeviceErrorCells, kDeviceErrorCells, DeviceErrorCell{});
  return reset(stream, kDeviceErrorCells);
}

Status DeviceErrors::reset(cudaStream_t stream, int count) {
  MORACLE_CUDA(cudaMemcpyAsync(cells_.data(), host_ + kDeviceErrorCells,
                               count * sizeof(DeviceErrorCell), cudaMemcpyHostToDevice, stream));
  MORACLE_CUDA(cudaStreamSynchronize(stream));
  return {};
}

Status DeviceErrors::take(cudaStream_t stream) {
  const int count = num_error_cells(scopes_);
  MORACLE_CUDA(cudaMemcpyAsync(host_, cells_.data(), count * sizeof(DeviceErrorCell),
                               cudaMemcpyDeviceToHost, stream));
  if (Status waited = check(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); !waited) {
    Error error = std::move(waited).error();
    error.fact += str("; the last launched kernel is '", last_launched(), "'");
    return error;
  }
  const Status found = first_error(host_, scopes_);
  if (!found) MORACLE_CHECK(reset(stream, count));
  scopes_.collected();
  return found;
}

}  // namespace moracle::cuda
