// Bounds the memory of all bodies together.
#pragma once

#include <atomic>
#include <cstdint>

namespace moracle::serve {

/// The bytes of one body, from its arrival until its request is answered.
class BodyBytes {
 public:
  /// Smaller bodies are not counted: large ones must not keep them out.
  static constexpr int64_t kSmall = 64 << 10;

  /// `all`: the bytes of all bodies; at most `max`.
  BodyBytes(std::atomic<int64_t>& all, int64_t max) : all_(all), max_(max) {}
  ~BodyBytes() { all_ -= counted_; }
  BodyBytes(const BodyBytes&) = delete;
  BodyBytes& operator=(const BodyBytes&) = delete;

  /// False: there is no memory for a body of `size` bytes. Call with growing sizes.
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
