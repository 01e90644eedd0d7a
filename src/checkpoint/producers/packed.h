// Integer codes packed into 32-bit words, in the orders of the tools that write them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/safetensors/tensors.h"
#include "moracle/quant.h"

namespace moracle {

/// Which codes of a matrix [N, K] share a word; a word holds its first code in its lowest b bits,
/// but for AWQ. In every file code and zero point are unsigned: 2^(b-1) more than in canonical
/// form.
enum class PackOrder : uint8_t {
  kGptq,  ///< codes [K·b/32, N]: along K; zero points [G, N·b/32]: along N
  kAwq,   ///< codes [K, N/8], zero points [G, N/8]: along N, as columns 0 2 4 6 1 3 5 7 of 8
  kCompressedTensors,  ///< codes [N, ceil(K·b/32)]: along K; zero points [ceil(N·b/32), G]: along N
};

/// The word at `index` of a tensor of i32.
uint32_t word_at(const TensorView& words, int64_t index);

/// Makes the canonical codes of a matrix whose n, k and key are set. Bits after column k are 0.
void unpack_codes(PackOrder order, const TensorView& words, CanonicalMatrix& matrix,
                  ThreadPool& pool);

/// Zero points as canonical form has them, [n, groups]. `less` is what the file stores them less by
/// (GPTQ's first version: 1); they wrap around in b bits.
std::vector<int8_t> unpack_zero_points(PackOrder order, const TensorView& words,
                                       const CanonicalMatrix& matrix, int less);

/// The matrix's zero points from tensor `name`. Where its key is symmetric they must all be the
/// middle, since the config says so with the key `says`: then the matrix gets none.
Status read_zero_points(const Tensors& tensors, const std::string& name, PackOrder order, int less,
                        const char* says, CanonicalMatrix& matrix);

/// Scales [groups, n] of the file as [n, groups].
Result<std::vector<float>> read_transposed_scales(const Tensors& tensors, const std::string& name,
                                                  int64_t n);

/// Checks that scales are floats [groups, n]; groups of `size` columns, for the message.
Status check_transposed_scales(const Tensors& tensors, const std::string& name, int64_t groups,
                               int64_t n, int64_t size);

/// True where columns belong to groups of `size` from left to right: element i of an i32 tensor is
/// i / size. Reads up to the first group with another element.
bool in_order(const TensorView& index, int64_t size);

/// The group of each column, from a tensor i32 [k]. Errors: an element outside [0, groups).
Result<std::vector<int32_t>> read_group_index(const Tensors& tensors, const std::string& name,
                                              int64_t groups);

}  // namespace moracle
