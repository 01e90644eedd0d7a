#include "kernels/cuda/device/device_error.h"

#include <algorithm>
#include <bit>

#include "base/text.h"
#include "kernels/cuda/device/cuda_check.h"

namespace moracle::cuda {
namespace {

constexpr DeviceErrorCell kNothing{DeviceErrorCell::kNone, 0, 1};

Error told(DeviceErrorKind kind, const DeviceErrorCell& cell) {
  const auto place = static_cast<int64_t>(cell.first >> 32);
  const auto value = static_cast<int32_t>(cell.first & 0xffffffffu);
  auto wrong = [](const char* where, std::string need, std::string fact) {
    return Error{ErrorKind::kInvalidArgument, "", where, std::move(need), std::move(fact)};
  };
  switch (kind) {
    case DeviceErrorKind::kIds:
      return wrong("topk_ids", str("-1, or an expert from 0 to ", cell.limit - 1),
                   str("choice ", place % cell.per_token, " of token ", place / cell.per_token,
                       " is ", value));
    case DeviceErrorKind::kCounts:
      return wrong("expert_num_tokens", str("0 to ", cell.limit, " tokens for each expert"),
                   str("expert ", place, " has ", value));
    case DeviceErrorKind::kKvCache:
      return Error{ErrorKind::kUnsupported, "", "kv cache",
                   "keys and values below 65520 in magnitude with f16 (bf16 and f32 have no such "
                   "limit)",
                   str("one is ", std::bit_cast<float>(value))};
    case DeviceErrorKind::kLoraIds:
      break;
  }
  return wrong("lora_ids", str("-1, or an adapter from 0 to ", cell.limit - 1),
               str("token ", place, " has ", value));
}

}  // namespace

DeviceErrors::~DeviceErrors() {
  static_cast<void>(cudaFree(device_));
  static_cast<void>(cudaFreeHost(host_));
}

Status DeviceErrors::open(cudaStream_t stream) {
  constexpr size_t kBytes = kDeviceErrorKinds * sizeof(DeviceErrorCell);
  MORACLE_CUDA(cudaMalloc(reinterpret_cast<void**>(&device_), kBytes));
  MORACLE_CUDA(cudaMallocHost(reinterpret_cast<void**>(&host_), 2 * kBytes));
  std::fill_n(host_ + kDeviceErrorKinds, kDeviceErrorKinds, kNothing);
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
    const Error error = told(static_cast<DeviceErrorKind>(kind), host_[kind]);
    MORACLE_CHECK(reset(stream));
    return error;
  }
  return {};
}

}  // namespace moracle::cuda
