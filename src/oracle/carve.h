// Splits scratch memory into arrays: first without memory, to compute the size, then with memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moracle/base.h"

namespace moracle {

class Carver {
 public:
  /// `base` may be null: then only the size is computed.
  explicit Carver(std::byte* base) : base_(base) {}

  template <class T>
  T* take(int64_t count) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + bytes_;
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
  Matrix take_matrix(DType dtype, int64_t rows, int64_t cols) {
    return {take<std::byte>(rows * cols * bits(dtype) / 8), dtype, rows, cols, cols};
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  size_t bytes_ = 0;
};

}  // namespace moracle
