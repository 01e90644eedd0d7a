#include "checkpoint/safetensors/read_record.h"

#include <cstring>

namespace moracle {
namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 divided by the golden ratio

// Both steps can be undone, so two different words never give the same result.
uint64_t mixed(uint64_t state, uint64_t word) {
  state = (state ^ word) * kOdd;
  return state ^ (state >> 29);
}

}  // namespace

uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed) {
  // Four chains hide the latency of the multiplications.
  uint64_t lanes[4] = {seed, seed + 1, seed + 2, seed + 3};
  size_t at = 0;
  for (; at + sizeof lanes <= bytes.size(); at += sizeof lanes) {
    uint64_t words[4];
    std::memcpy(words, bytes.data() + at, sizeof words);
    for (int i = 0; i < 4; ++i) lanes[i] = mixed(lanes[i], words[i]);
  }
  uint64_t sum = bytes.size();
  for (const uint64_t lane : lanes) sum = mixed(sum, lane);
  for (; at < bytes.size(); ++at) sum = mixed(sum, static_cast<uint64_t>(bytes[at]));
  return sum;
}

void ReadRecord::add(std::string_view tensor, int64_t first, std::span<const std::byte> bytes) {
  const uint64_t place = checksum(std::as_bytes(std::span(tensor)), static_cast<uint64_t>(first));
  const int which = own.load(std::memory_order_relaxed) ? 1 : 0;
  // A sum, so that the order of the threads does not matter.
  checksums_[which].fetch_add(mixed(checksum(bytes, place), place), std::memory_order_relaxed);
  bytes_[which].fetch_add(static_cast<int64_t>(bytes.size()), std::memory_order_relaxed);
}

}  // namespace moracle
