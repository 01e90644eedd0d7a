// TMA descriptors: tensors in GPU memory, of which one TMA instruction loads a tile to shared
// memory. From compute capability 9.0 on.
#pragma once

#include <array>
#include <cstdint>

#include "moracle/base.h"

namespace moracle::cuda {

/// CUtensorMap, which kernels take as a parameter, by value.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

/// A tensor of up to four dimensions, the innermost first. Unused dimensions have size 1.
struct TiledTensor {
  const void* data;   ///< 16-byte aligned
  int element_bytes;  ///< 1, 4 or 8
  int rank;
  std::array<int64_t, 4> size;
  std::array<int64_t, 3> stride;  ///< bytes from one index of dimensions 1, 2, 3 to the next
  std::array<int, 4> tile;        ///< elements of a copy, at most 256; elements outside are zeros
  /// Rows of 128 bytes: vector c of 16 bytes of row r goes to r · 128 + (c ^ r % 8) · 16.
  bool swizzle = false;
};

/// Errors: a driver without TMA; a tensor that it cannot describe.
Result<TensorMap> make_tensor_map(const TiledTensor& tensor);

}  // namespace moracle::cuda
