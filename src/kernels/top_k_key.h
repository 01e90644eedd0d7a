// The order of top-k on every device: larger numbers first, the lower index first among equals. NaN
// comes first, as in PyTorch, so the first result tells whether the numbers contain a NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace moracle {

/// A number and its index in one word, whose unsigned order is the top-k order.
constexpr uint64_t top_k_key(float value, int32_t index) {
  uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);  // -0 is as large as 0
  // Map positive numbers above negative ones, and reverse the negative ones.
  bits = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  if (!(value == value)) bits = 0xffffffffu;
  return uint64_t{bits} << 32 | static_cast<uint32_t>(~index);
}
/// Numbers that one GPU block sorts at a time.
constexpr int64_t kTopKTile = 2048;

/// The key of no number: below every other key.
constexpr uint64_t kNoKey = 0;

constexpr int32_t index_of_key(uint64_t key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}
/// Every NaN comes back as a NaN, without its payload.
constexpr float value_of_key(uint64_t key) {
  const auto bits = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>(bits >> 31 != 0 ? bits & 0x7fffffffu : ~bits);
}

}  // namespace moracle
