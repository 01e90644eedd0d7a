#include "kernels/device_error.h"

#include <bit>

#include "base/text.h"

namespace moracle {

Error error_of(DeviceErrorKind kind, const DeviceErrorCell& cell) {
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

}  // namespace moracle
