// A layout is how one kernel wants the bytes of a matrix: an index function and a converter, both
// pure. Canonical form in, packed bytes out; one expert after another at a fixed distance.
#pragma once

#include <cstddef>
#include <span>

#include "moracle/checkpoint.h"
#include "moracle/quant.h"

namespace moracle {

/// Where the pieces of one packed expert begin, in bytes; each on a 64-byte boundary. A piece that
/// a shape does not need has no length: it ends where the next one begins.
struct Sections {
  size_t codes = 0;
  size_t scales = 0;
  size_t zero_points = 0;
  size_t group_index = 0;
  size_t bias = 0;
  size_t bytes = 0;  ///< all of it: the distance to the next expert
};

struct Layout {
  std::string_view name;
  std::string_view summary;
  /// The weight formats that it can hold.
  std::span<const DType> holds;
  Sections (*sections)(const MatrixShape& shape);
  /// Columns of the activations that kernels read: k, or more where columns are padded; then the
  /// caller provides zeros.
  int64_t (*read_cols)(const MatrixShape& shape);
  /// Bit of code (r, c) within the codes section; a bijection onto the codes without their padding.
  int64_t (*code_bit)(const MatrixShape& shape, int64_t r, int64_t c);
  /// Writes one expert, padding included, so that packing over old bytes gives the same result.
  void (*pack)(const CanonicalMatrix& matrix, std::byte* out);
};

#define X(layout) extern const Layout layout;
#include "layout/layouts.inc"
#undef X

/// Every layout, for the tests that hold for all.
std::span<const Layout* const> layouts();

}  // namespace moracle
