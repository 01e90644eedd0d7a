// The rows of a linear layer that adapters change: those of a module that is stacked into it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "moracle/checkpoint.h"

namespace moracle {

using AdapterList = std::vector<std::shared_ptr<const LoraAdapter>>;
using AdapterSpan = std::span<const std::shared_ptr<const LoraAdapter>>;

/// A module that adapters change: rows [first, first + n) of the stacked matrix.
struct AdaptedRows {
  std::string module;
  int64_t first = 0, n = 0, k = 0;
  int64_t rank = 0;  ///< the largest of any adapter
};
/// Those of a matrix, in the order of its rows.
std::vector<AdaptedRows> adapted_rows(const DescribedMatrix& matrix, AdapterSpan adapters);
/// Device memory of their adapters, in the device's activation dtype.
int64_t adapter_bytes(std::span<const AdaptedRows> rows, size_t num_adapters, DType dtype);
/// Modules that stand for rows of their own, so that adapters can change them.
std::vector<std::string> adaptable_modules(const DescribedMatrix& matrix);

}  // namespace moracle
