// Inputs for the conversion tests: matrices in slices, small experts and large experts.
#pragma once

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "conformance/conformance.h"

namespace moracle {

// Experts of two sources each, like gate and up.
inline DescribedMatrix stacked(const MatrixShape& shape, std::vector<int64_t> rows,
                               int64_t num_experts, std::vector<int64_t> broken = {}) {
  std::vector<std::vector<DescribedMatrix::Source>> sources(num_experts);
  for (int64_t e = 0; e < num_experts; ++e) {
    for (size_t i = 0; i < rows.size(); ++i) {
      MatrixShape rows_of_source = shape;
      rows_of_source.n = rows[i];
      DescribedMatrix::Source source;
      source.n = rows_of_source.n;
      const bool fails = std::find(broken.begin(), broken.end(), e) != broken.end();
      source.read = [=](ThreadPool&) -> Result<CanonicalMatrix> {
        if (fails) return Error{ErrorKind::kBadFile, "file", str("expert ", e), "numbers", "none"};
        return conformance::random_matrix(rows_of_source, 10 * e + i);
      };
      sources[e].push_back(std::move(source));
    }
  }
  return DescribedMatrix(shape, {shape.key, {}}, std::move(sources), nullptr);
}

struct ConvertCase {
  MatrixShape shape;
  std::vector<int64_t> rows;
  int64_t num_experts;
};
/// Small experts are distributed over threads; large ones are split by rows. Slices that end inside
/// a panel are stacked first.
inline std::vector<ConvertCase> convert_cases() {
  const QuantKey int4 = int4_static_group(32);
  return {{{64, 96, int4, false, true}, {32, 32}, 7},
          {{56, 96, int4}, {24, 32}, 5},
          {{48, 40, kBF16Weight}, {16, 32}, 9},
          {{8192, 1024, int4}, {4096, 4096}, 1},
          {{4096, 512, kBF16Weight, false, true}, {4096}, 1},
          {{272, 160, fp8_static_block(128, 128)}, {128, 144}, 3}};
}

}  // namespace moracle
