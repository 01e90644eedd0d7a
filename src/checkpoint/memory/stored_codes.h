// Integer codes and zero points of one expert in memory, in canonical form.
#pragma once

#include "moracle/checkpoint.h"

namespace moracle {

/// Elements in host memory.
struct HostTensor {
  TensorView view;
  std::vector<std::byte> copy;  ///< what `view` shows; empty: the caller's tensor
};

/// A name and the tensor, for messages.
struct NamedTensor {
  std::string name;
  TensorView view;
  ReadMemory read;  ///< null: the tensor is in host memory

  bool present() const { return view.data != nullptr; }
  /// "name: needs <need>; it is <dtype and shape>"
  Error wrong(std::string need) const;
  /// The elements of expert e, without the first dimension. Errors: those of `read`.
  Result<HostTensor> expert(int64_t e) const;
  /// Errors: a number of expert e that is not finite.
  Status check_finite(const TensorView& expert, int64_t e, ThreadPool& pool) const;
  /// The floats of expert e; e8m0 exponents and bytes become powers of two. Errors: not finite;
  /// those of `read`.
  Result<std::vector<float>> floats(int64_t e) const;
};

/// Checks the shape of packed codes of `num_experts` matrices [n, k]. Errors: another shape or
/// dtype.
Status check_codes(const NamedTensor& codes, Packing packing, const QuantKey& key,
                   int64_t num_experts, int64_t n, int64_t k);
/// Sets the codes of the matrix, whose n, k and key are set.
void read_codes(const TensorView& codes, Packing packing, CanonicalMatrix& matrix,
                ThreadPool& pool);

/// Checks the shape of packed zero points. Errors: another shape or dtype.
Status check_zero_points(const NamedTensor& zeros, Packing packing, const QuantKey& key,
                         int64_t num_experts, int64_t n, int64_t groups);
/// Zero points in canonical form, [n, groups].
std::vector<int8_t> read_zero_points(const TensorView& zeros, Packing packing,
                                     const CanonicalMatrix& matrix);

}  // namespace moracle
