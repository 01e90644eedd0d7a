// Integer codes packed into 32-bit words, in the order of each tool.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/threads/thread_pool.h"
#include "checkpoint/tensors/tensors.h"
#include "moracle/quant.h"

namespace moracle {

/// The codes of a matrix [N, K] that share a word. A word holds its first code in the lowest b
/// bits, except in AWQ. In every file code and zero point are unsigned: canonical value + 2^(b-1).
enum class PackOrder : uint8_t {
  kGptq,  ///< codes [K·b/32, N]: along K; zero points [G, N·b/32]: along N
  kAwq,   ///< codes [K, N/8], zero points [G, N/8]: along N, as columns 0 2 4 6 1 3 5 7 of 8
  kCompressedTensors,  ///< codes [N, ceil(K·b/32)]: along K; zero points [ceil(N·b/32), G]: along N
};

/// The word at `index` of an i32 tensor.
uint32_t word_at(const TensorView& words, int64_t index);

/// Unpacks canonical codes into a matrix whose n, k and key are set. Bits after column k are 0.
void unpack_codes(PackOrder order, const TensorView& words, CanonicalMatrix& matrix,
                  ThreadPool& pool);

/// Zero points in canonical form, [n, groups]. The file stores zero - `less` (GPTQ's first version:
/// 1), which wraps around in b bits.
std::vector<int8_t> unpack_zero_points(PackOrder order, const TensorView& words,
                                       const CanonicalMatrix& matrix, int less);

/// Reads the matrix's zero points from tensor `name`. If its key is symmetric, all must be the
/// middle value, because the config key `says` declares it. Then the matrix gets no zero points.
Status read_zero_points(const Tensors& tensors, const std::string& name, PackOrder order, int less,
                        const char* says, CanonicalMatrix& matrix);

/// Reads scales [groups, n] and returns them as [n, groups].
Result<std::vector<float>> read_transposed_scales(const Tensors& tensors, const std::string& name,
                                                  int64_t n);

/// Checks that scales are floats [groups, n]. `size` is the group size in columns, for the message.
Status check_transposed_scales(const Tensors& tensors, const std::string& name, int64_t groups,
                               int64_t n, int64_t size);

/// True if columns belong to groups of `size` from left to right: element i of an i32 tensor is i /
/// size. Reads up to the first group that differs.
bool in_order(const TensorView& index, int64_t size);

/// The group of each column, from an i32 tensor [k]. Errors: an element outside [0, groups).
Result<std::vector<int32_t>> read_group_index(const Tensors& tensors, const std::string& name,
                                              int64_t groups);

}  // namespace moracle
