// Counts and checksums the bytes that a process reads of a checkpoint. Ranks compare them.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>

#include "moracle/base.h"

namespace moracle {

/// Counts reads while `on`. Several threads may add at once, and the order does not matter.
class ReadRecord {
 public:
  struct Sum {
    uint64_t checksum = 0;
    int64_t bytes = 0;
  };
  std::atomic<bool> on{false};
  /// True while this rank reads its own experts, which no other rank reads.
  std::atomic<bool> own{false};

  /// Counts bytes of a tensor, from byte `first` of the tensor on.
  void add(std::string_view tensor, int64_t first, std::span<const std::byte> bytes);
  Sum common() const { return sum(0); }
  Sum only_here() const { return sum(1); }

 private:
  Sum sum(int which) const { return {checksums_[which].load(), bytes_[which].load()}; }
  std::atomic<uint64_t> checksums_[2] = {};
  std::atomic<int64_t> bytes_[2] = {};
};

}  // namespace moracle
