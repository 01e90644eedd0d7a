// Computes the bytes and operations of a cell, and the peak that bounds them.
#include <algorithm>

#include "bench/bench.h"

namespace moracle::bench {

int64_t expert_bytes(const LayerSpec& spec) {
  int64_t bytes = 0;
  for (const MatrixShape& shape : spec.matrices()) {
    CanonicalMatrix m;
    m.n = shape.n;
    m.k = shape.k;
    m.key = shape.key;
    bytes += m.n * m.row_bytes();
    if (shape.key.quantized()) {
      const int64_t scales = m.scale_rows() * m.scale_cols();
      const bool integers = shape.key.scale_dtype == DType::kI8;
      // A file of NVFP4 has a byte for each scale; those of the key are its products.
      bytes += shape.key == kNvfp4Static ? scales : scales * bits(shape.key.scale_dtype) / 8;
      if (!shape.key.symmetric && !integers) bytes += scales;
      if (shape.key.minimums) bytes += scales * (integers ? 1 : 4);
      if (integers) bytes += m.n * m.factor_cols() * (shape.key.minimums ? 4 : 2);
    }
    if (shape.bias) bytes += m.n * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

int64_t matrix_ops(const MatrixShape& shape, int64_t rows) {
  return 2 * shape.n * shape.k * rows;
}

namespace {

Arithmetic arithmetic_of(DType input) {
  switch (input) {
    case DType::kI8:
    case DType::kU8:
      return Arithmetic::kInt8;
    case DType::kBF16:
      return Arithmetic::kBf16;
    case DType::kF16:
      return Arithmetic::kF16;
    case DType::kF8E4M3:
      return Arithmetic::kFp8;
    default:
      return Arithmetic::kF32;
  }
}

// Matches whole words only: "avx512" is not in "avx512_vnni".
bool names_word(std::string_view text, std::string_view word) {
  auto is_word_char = [&](size_t at) {
    return at < text.size() &&
           (text[at] == '_' || std::isalnum(static_cast<unsigned char>(text[at])));
  };
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    if (!(at > 0 && is_word_char(at - 1)) && !is_word_char(at + word.size())) return true;
  }
  return false;
}

}  // namespace

const Peak* peak_for(const MatrixPlan& matrix, int64_t num_tokens, std::span<const Peak> peaks) {
  std::string_view running;
  for (const KernelUse& use : matrix.kernels) {
    if (use.range.from_tokens <= std::max<int64_t>(num_tokens, 1)) running = use.name;
  }
  Arithmetic wanted = arithmetic_of(matrix.input_dtype);
  // If no peak exists for the narrow floats, they are widened to f32.
  const bool narrow_floats = wanted == Arithmetic::kF16 || wanted == Arithmetic::kFp8;
  const bool there = std::any_of(peaks.begin(), peaks.end(),
                                 [&](const Peak& peak) { return peak.arithmetic == wanted; });
  if (narrow_floats && !there) wanted = Arithmetic::kF32;
  // Prefer an instruction named with the right numbers, then one named at all, then the right
  // numbers. Among equals, prefer the fastest.
  auto rank = [&](const Peak& peak) {
    const bool named = names_word(running, peak.instruction), right = peak.arithmetic == wanted;
    return named && right ? 3 : named ? 2 : right ? 1 : 0;
  };
  const Peak* best = nullptr;
  for (const Peak& peak : peaks) {
    if (rank(peak) == 0) continue;
    const bool better = best == nullptr || rank(peak) > rank(*best) ||
                        (rank(peak) == rank(*best) && peak.ops_per_second > best->ops_per_second);
    if (better) best = &peak;
  }
  return best;
}

}  // namespace moracle::bench
