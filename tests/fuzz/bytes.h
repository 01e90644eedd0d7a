// Reads the fuzzer's bytes as choices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace moracle::testing {

/// Reads front to back; after the last byte come zeros.
class Bytes {
 public:
  explicit Bytes(std::span<const uint8_t> left) : left_(left) {}
  bool empty() const { return left_.empty(); }

  uint8_t byte() {
    if (left_.empty()) return 0;
    const uint8_t first = left_.front();
    left_ = left_.subspan(1);
    return first;
  }
  /// A number in [0, count), at most 255; 0 if count is 0.
  size_t below(size_t count) { return count == 0 ? 0 : byte() % count; }
  template <class T, size_t kCount>
  const T& one_of(const T (&choices)[kCount]) {
    return choices[below(kCount)];
  }
  /// Small, a power of two, or -1.
  int64_t size() {
    const uint8_t choice = byte();
    if (choice < 192) return choice;
    return choice == 255 ? -1 : int64_t{1} << (choice - 192);
  }
  /// A length byte, then that many bytes, cut to ASCII: valid as a name and in JSON.
  std::string text() {
    std::string text(std::min<size_t>(byte() % 64, left_.size()), ' ');
    for (char& c : text) c = static_cast<char>(byte() & 127);
    return text;
  }

 private:
  std::span<const uint8_t> left_;
};

}  // namespace moracle::testing
