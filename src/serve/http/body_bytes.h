// Limits the total memory of request bodies.
#pragma once

#include <atomic>
#include <cstdint>

namespace moracle::serve {

/// Memory of one body, from arrival until the reply.
class BodyBytes {
 public:
  /// Exempt small bodies, so that large ones cannot block them.
  static constexpr int64_t kSmall = 64 << 10;

  /// `all`: shared counter of all bodies; its limit is `max`.
  BodyBytes(std::atomic<int64_t>& all, int64_t max) : all_(all), max_(max) {}
  ~BodyBytes() { all_ -= counted_; }
  BodyBytes(const BodyBytes&) = delete;
  BodyBytes& operator=(const BodyBytes&) = delete;

  /// Reserves memory for `size` bytes in total. False: over the limit. Call with growing sizes.
  bool grow_to(int64_t size) {
    if (size <= kSmall) return true;
    const int64_t more = size - counted_;
    if (all_.fetch_add(more) + more > max_) {
      all_ -= more;
      return false;
    }
    counted_ = size;
    return true;
  }
  bool is_large() const { return counted_ > 0; }

 private:
  std::atomic<int64_t>& all_;
  const int64_t max_;
  int64_t counted_ = 0;
};

}  // namespace moracle::serve
