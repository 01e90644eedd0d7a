#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "checkpoint/experts/stack.h"
#include "moracle/checkpoint.h"
#include "quant/canonical.h"
#include "quant/cut.h"
#include "quant/widen.h"

namespace moracle {

DescribedMatrix::DescribedMatrix(MatrixShape shape, Scheme scheme,
                                 std::vector<std::vector<Source>> sources,
                                 std::shared_ptr<const void> owner)
    : shape_(shape), scheme_(scheme), sources_(std::move(sources)), owner_(std::move(owner)) {}

namespace {

// A copy that views the same codes, so that a DescribedMatrix can be read more than once.
CanonicalMatrix view_of(const CanonicalMatrix& matrix) {
  CanonicalMatrix view;
  view.n = matrix.n;
  view.k = matrix.k;
  view.key = matrix.key;
  view.codes = matrix.codes;
  view.scales = matrix.scales;
  view.zero_points = matrix.zero_points;
  view.minimums = matrix.minimums;
  view.scale_factors = matrix.scale_factors;
  view.minimum_factors = matrix.minimum_factors;
  view.group_index = matrix.group_index;
  view.bias = matrix.bias;
  return view;
}

}  // namespace

DescribedMatrix DescribedMatrix::from(Scheme scheme, std::vector<CanonicalMatrix> experts) {
  auto kept = std::make_shared<std::vector<CanonicalMatrix>>(std::move(experts));
  MatrixShape shape;
  if (!kept->empty()) {
    const CanonicalMatrix& first = kept->front();
    shape = {.n = first.n, .k = first.k, .key = first.key, .bias = !first.bias.empty()};
    for (const CanonicalMatrix& matrix : *kept) shape.group_index |= !matrix.group_index.empty();
  }
  std::vector<std::vector<Source>> sources;
  for (size_t e = 0; e < kept->size(); ++e) {
    Source source;
    source.n = shape.n;
    source.read = [kept, e](ThreadPool&) -> Result<CanonicalMatrix> { return view_of((*kept)[e]); };
    sources.emplace_back().push_back(std::move(source));
  }
  return DescribedMatrix(shape, scheme, std::move(sources), kept);
}

std::vector<std::string> DescribedMatrix::tensors() const {
  std::vector<std::string> names;
  for (const auto& expert : sources_) {
    for (const Source& source : expert)
      names.insert(names.end(), source.tensors.begin(), source.tensors.end());
  }
  return names;
}

std::vector<std::string> DescribedMatrix::modules() const {
  std::vector<std::string> names;
  for (const std::vector<Source>& expert : sources_) {
    for (const Source& source : expert) {
      // List a tensor once if it holds several experts.
      const bool again = !names.empty() && names.back() == source.module;
      if (!source.module.empty() && !again) names.push_back(source.module);
    }
  }
  return names;
}

std::vector<int64_t> DescribedMatrix::source_rows() const {
  std::vector<int64_t> rows;
  for (const Source& source : sources_.empty() ? std::vector<Source>() : sources_[0])
    rows.push_back(source.n);
  return rows;
}

int64_t DescribedMatrix::source_bytes() const {
  int64_t total = 0;
  for (const auto& expert : sources_) {
    for (const Source& source : expert) total += source.source_bytes;
  }
  return total;
}

namespace {

// Reads the source, which starts at row `row` of a matrix of this shape, in slices of about one MiB
// per thread. A slice is still in the cache when it is packed, and the next slice reuses its
// memory.
Status read_in_rows(const DescribedMatrix::Source& source, const MatrixShape& shape,
                    ThreadPool& pool, int64_t row, const DescribedMatrix::UseSlice& use) {
  constexpr int64_t kBytesPerThread = int64_t{1} << 20, kRows = DescribedMatrix::kSliceRows;
  const int64_t row_bytes = std::max<int64_t>((shape.k * bits(shape.key.dtype) + 7) / 8, 1);
  const int64_t bytes = kBytesPerThread * pool.size();
  const int64_t step = std::max<int64_t>(bytes / row_bytes / kRows, 1) * kRows;
  for (int64_t first = 0; first < source.n; first += step) {
    const int64_t count = std::min(step, source.n - first);
    MORACLE_TRY(const CanonicalMatrix slice, source.read_rows(pool, first, count));
    use(slice, row + first);
  }
  return {};
}

}  // namespace

// If one expert's columns are out of order, experts with ordered columns get an index too.
Result<CanonicalMatrix> DescribedMatrix::read(const Source& source, ThreadPool& pool) const {
  MORACLE_TRY(CanonicalMatrix matrix, source.read(pool));
  if (!shape_.group_index || !matrix.group_index.empty()) return matrix;
  matrix.group_index.resize(matrix.k);
  for (int64_t c = 0; c < matrix.k; ++c)
    matrix.group_index[c] = static_cast<int32_t>(c / matrix.group_cols());
  return matrix;
}

Status DescribedMatrix::read_slices(int64_t e, ThreadPool& pool, const UseSlice& use) const {
  std::vector<int32_t> group_index;
  int64_t row = 0;
  for (const Source& source : sources_[e]) {
    if (source.read_rows) {
      MORACLE_CHECK(read_in_rows(source, shape_, pool, row, use));
      row += source.n;
      continue;
    }
    MORACLE_TRY(const CanonicalMatrix slice, read(source, pool));
    if (row > 0 && slice.group_index != group_index) {
      return Error{ErrorKind::kUnsupported, "",
                   source.tensors.empty() ? "g_idx" : source.tensors.front(),
                   "one column order (g_idx) for all matrices that read the same input",
                   "the orders differ"};
    }
    use(slice, row);
    if (row == 0) group_index = slice.group_index;
    row += source.n;
  }
  return {};
}

Result<CanonicalMatrix> DescribedMatrix::expert(int64_t e, ThreadPool& pool) const {
  if (sources_[e].size() == 1) return read(sources_[e][0], pool);
  CanonicalMatrix whole;
  whole.n = shape_.n;
  whole.k = shape_.k;
  whole.key = shape_.key;
  whole.storage.resize(whole.n * whole.row_bytes());
  whole.codes = whole.storage;
  MORACLE_CHECK(read_slices(e, pool, [&](const CanonicalMatrix& slice, int64_t first_row) {
    stack_rows(whole, first_row, slice);
  }));
  return whole;
}

Result<CanonicalMatrix> DescribedMatrix::expert(int64_t e) const {
  ThreadPool caller(1);
  return expert(e, caller);
}

void DescribedMatrix::widen(const Scheme& scheme) {
  if (scheme_ == scheme) return;
  for (std::vector<Source>& sources : sources_) moracle::widen(sources, scheme.weight);
  scheme_ = scheme;
  shape_.key = scheme.weight;
}

void DescribedMatrix::keep(std::span<const int32_t> experts) {
  std::vector<std::vector<Source>> sources;
  std::vector<float> scales;
  for (int32_t e : experts) {
    sources.push_back(std::move(sources_[e]));
    if (!input_scales_.empty()) scales.push_back(input_scales_[e]);
  }
  sources_ = std::move(sources);
  input_scales_ = std::move(scales);
}

void widen(std::vector<DescribedMatrix::Source>& sources, const QuantKey& key) {
  for (DescribedMatrix::Source& source : sources) {
    source.read_rows = {};
    source.read = [read = std::move(source.read),
                   key](ThreadPool& pool) -> Result<CanonicalMatrix> {
      MORACLE_TRY(CanonicalMatrix matrix, read(pool));
      widen(matrix, key);
      return matrix;
    };
  }
}

void align_blocks(MatrixShape& shape, std::vector<DescribedMatrix::Source>& sources) {
  if (!shape.key.quantized() || sources.size() == 1) return;
  int64_t rows = shape.key.group.rows == GroupShape::kAll ? 1 : shape.key.group.rows;
  for (auto source = sources.begin(); source != sources.end() - 1; ++source)
    rows = std::gcd(rows, source->n);
  if (rows == shape.key.group.rows) return;
  shape.key.group.rows = rows;
  for (DescribedMatrix::Source& source : sources) {
    source.read_rows = {};
    source.read = [read = std::move(source.read),
                   rows](ThreadPool& pool) -> Result<CanonicalMatrix> {
      MORACLE_TRY(CanonicalMatrix matrix, read(pool));
      if (rows > 1) return divide_blocks(std::move(matrix), rows);
      expand_scale_rows(matrix);
      return matrix;
    };
  }
}

}  // namespace moracle
