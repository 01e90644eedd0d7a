#include "models/adapters/adapted_rows.h"

#include <algorithm>

namespace moracle {

std::vector<std::string> adaptable_modules(const DescribedMatrix& matrix) {
  std::vector<std::string> modules = matrix.modules();
  if (modules.size() != matrix.source_rows().size()) modules.clear();
  return modules;
}

std::vector<AdaptedRows> adapted_rows(const DescribedMatrix& matrix, AdapterSpan adapters) {
  std::vector<AdaptedRows> all;
  const std::vector<std::string> modules = adaptable_modules(matrix);
  int64_t first = 0;
  for (size_t i = 0; i < modules.size(); ++i) {
    AdaptedRows rows{modules[i], first, matrix.source_rows()[i], matrix.shape().k, 0};
    first += rows.n;
    for (const auto& adapter : adapters) {
      const auto own = adapter->modules.find(rows.module);
      if (own != adapter->modules.end()) rows.rank = std::max(rows.rank, own->second.rank);
    }
    if (rows.rank > 0) all.push_back(std::move(rows));
  }
  return all;
}

int64_t adapter_bytes(std::span<const AdaptedRows> rows, size_t num_adapters, DType dtype) {
  int64_t elements = 0;
  for (const AdaptedRows& one : rows) elements += one.rank * (one.k + one.n);
  return static_cast<int64_t>(num_adapters) * elements * bits(dtype) / 8;
}

}  // namespace moracle
