#include "checkpoint/memory/stored_codes.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "checkpoint/producers/packed.h"

namespace moracle {
namespace {

using CodesShape = std::vector<int64_t>;

int64_t rounded_up(int64_t count, int64_t by) {
  return (count + by - 1) / by;
}

PackOrder pack_order(Packing packing) {
  if (packing == Packing::kAwq) return PackOrder::kAwq;
  return packing == Packing::kRows ? PackOrder::kCompressedTensors : PackOrder::kGptq;
}

Status check_stored(const NamedTensor& tensor, DType dtype, const CodesShape& shape) {
  if (tensor.view.dtype == dtype && tensor.view.shape == shape) return {};
  return tensor.wrong(str(name(dtype), " [", join(shape), "]"));
}

// Bytes of unsigned codes, row after row.
void read_code_bytes(const TensorView& codes, CanonicalMatrix& matrix, ThreadPool& pool) {
  constexpr int64_t kLeastRows = 64;
  const auto flip = bits(matrix.key.dtype) == 4 ? std::byte{0x88} : std::byte{0x80};
  const int64_t row_bytes = matrix.row_bytes();
  matrix.storage.resize(matrix.n * row_bytes);
  pool.split(
      matrix.n,
      [&](int64_t begin, int64_t end) {
        std::transform(codes.data + begin * row_bytes, codes.data + end * row_bytes,
                       matrix.storage.data() + begin * row_bytes,
                       [flip](std::byte code) { return code ^ flip; });
      },
      kLeastRows);
  matrix.codes = matrix.storage;
}

// Bytes of zero points: 8 / b rows in a byte, the low bits first.
std::vector<int8_t> read_zero_bytes(const TensorView& zeros, const CanonicalMatrix& matrix) {
  const int width = bits(matrix.key.dtype), per_byte = 8 / width, middle = 1 << (width - 1);
  const int64_t groups = matrix.scale_cols();
  std::vector<int8_t> values(matrix.n * groups);
  for (int64_t n = 0; n < matrix.n; ++n) {
    for (int64_t g = 0; g < groups; ++g) {
      const int byte = zeros.as<uint8_t>()[n / per_byte * groups + g];
      const int code = byte >> (n % per_byte * width) & ((1 << width) - 1);
      values[n * groups + g] = static_cast<int8_t>(code - middle);
    }
  }
  return values;
}

}  // namespace

Status check_codes(const NamedTensor& codes, Packing packing, const QuantKey& key,
                   int64_t num_experts, int64_t n, int64_t k) {
  const int64_t width = bits(key.dtype), words = rounded_up(k * width, 32);
  const auto check = [&](int64_t rows, int64_t cols) {
    return check_stored(codes, DType::kI32, {num_experts, rows, cols});
  };
  if (packing == Packing::kAwq && width == 4) return check(k, n / 8);
  if (packing == Packing::kAwq) return codes.wrong("int4 codes, which AWQ packs");
  if (packing != Packing::kRows) return check(words, n);
  if (codes.view.dtype == DType::kI32) return check(n, words);
  const bool own = codes.view.dtype == DType::kI8 && width == 8;
  return check_stored(codes, own ? DType::kI8 : DType::kU8, {num_experts, n, k * width / 8});
}

void read_codes(const TensorView& codes, Packing packing, CanonicalMatrix& matrix,
                ThreadPool& pool) {
  if (codes.dtype == DType::kI8)
    matrix.codes = {codes.data, codes.num_bytes()};
  else if (codes.dtype == DType::kU8)
    read_code_bytes(codes, matrix, pool);
  else
    unpack_codes(pack_order(packing), codes, matrix, pool);
}

Status check_zero_points(const NamedTensor& zeros, Packing packing, const QuantKey& key,
                         int64_t num_experts, int64_t n, int64_t groups) {
  const int64_t width = bits(key.dtype), words = rounded_up(n * width, 32);
  if (packing != Packing::kRows)
    return check_stored(zeros, DType::kI32, {num_experts, groups, words});
  if (zeros.view.dtype == DType::kI32)
    return check_stored(zeros, DType::kI32, {num_experts, words, groups});
  return check_stored(zeros, DType::kU8, {num_experts, rounded_up(n * width, 8), groups});
}

std::vector<int8_t> read_zero_points(const TensorView& zeros, Packing packing,
                                     const CanonicalMatrix& matrix) {
  if (zeros.dtype == DType::kU8) return read_zero_bytes(zeros, matrix);
  return unpack_zero_points(pack_order(packing), zeros, matrix, packing == Packing::kGptq ? 1 : 0);
}

}  // namespace moracle
