#include "kernels/device/device_error.h"

#include <bit>

#include "base/text.h"

namespace moracle {
namespace {

Error error_of(DeviceErrorKind kind, const DeviceErrorCell& cell, const std::string& layer) {
  const auto index = static_cast<int64_t>(cell.first >> 32);
  const auto value = static_cast<int32_t>(cell.first & 0xffffffffu);
  auto wrong = [&](const char* where, std::string need, std::string fact) {
    return Error{ErrorKind::kInvalidArgument, "", error_place(layer, where), std::move(need),
                 std::move(fact)};
  };
  switch (kind) {
    case DeviceErrorKind::kIds:
      return wrong("topk_ids", str("-1, or an expert from 0 to ", cell.limit - 1),
                   str("choice ", index % cell.per_token, " of token ", index / cell.per_token,
                       " is ", value));
    case DeviceErrorKind::kCounts:
      return wrong("expert_num_tokens", str("0 to ", cell.limit, " tokens for each expert"),
                   str("expert ", index, " has ", value));
    case DeviceErrorKind::kKvCache:
      return Error{ErrorKind::kUnsupported, "", "kv cache",
                   "keys and values below 65520 in magnitude with f16 (bf16 and f32 have no such "
                   "limit)",
                   str("one is ", std::bit_cast<float>(value))};
    case DeviceErrorKind::kLoraIds:
      break;
  }
  return wrong("lora_ids", str("-1, or an adapter from 0 to ", cell.limit - 1),
               str("token ", index, " has ", value));
}

}  // namespace

std::string error_place(const std::string& layer, const char* argument) {
  return layer.empty() ? argument : str(layer, ": ", argument);
}

Status first_error(const DeviceErrorCell* cells, const ErrorScopes& scopes) {
  for (int i = 0; i < num_error_cells(scopes); ++i) {
    if (cells[i].first == DeviceErrorCell::kNone) continue;
    return error_of(static_cast<DeviceErrorKind>(i % kDeviceErrorKinds), cells[i],
                    scopes.name(i / kDeviceErrorKinds));
  }
  return {};
}

}  // namespace moracle
