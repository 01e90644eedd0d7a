// The fuzzer's bytes as choices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace moracle::testing {

/// Read front to back; zeros follow their end.
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
  /// In [0, count); 0 where that is empty. No more than 256 of them are reached.
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
  /// A length and as many bytes, cut to ASCII: valid as a name and in JSON.
  std::string text() {
    std::string text(std::min<size_t>(byte() % 64, left_.size()), ' ');
    for (char& c : text) c = static_cast<char>(byte() & 127);
    return text;
  }

 private:
  std::span<const uint8_t> left_;
};

}  // namespace moracle::testing
