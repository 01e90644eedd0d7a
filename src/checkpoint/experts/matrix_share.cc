#include "checkpoint/experts/matrix_share.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "quant/cut.h"

namespace moracle {
namespace {

using Part = DescribedMatrix::Part;

Error not_divided(const DescribedMatrix& matrix, std::string need, std::string fact) {
  const std::vector<std::string> modules = matrix.modules();
  return {ErrorKind::kUnsupported, "", modules.empty() ? "matrix" : modules.front(),
          std::move(need), std::move(fact)};
}

Part rows_of(const Part& part, int64_t first, int64_t count) {
  Part some = part;
  some.n = count;
  some.source_bytes = part.source_bytes * count / part.n;
  if (!part.read_rows) {
    some.read = [read = part.read, first, count](ThreadPool& pool) -> Result<CanonicalMatrix> {
      MORACLE_TRY(CanonicalMatrix whole, read(pool));
      return cut_rows(std::move(whole), first, count);
    };
    return some;
  }
  some.read = [read = part.read_rows, first, count](ThreadPool& pool) {
    return read(pool, first, count);
  };
  some.read_rows = [read = part.read_rows, first](ThreadPool& pool, int64_t at, int64_t rows) {
    return read(pool, first + at, rows);
  };
  return some;
}

Part columns_of(const Part& part, int64_t k, int64_t first, int64_t count, bool keeps_bias) {
  Part some = part;
  some.source_bytes = part.source_bytes * count / k;
  const auto cut = [=](Result<CanonicalMatrix>&& whole) -> Result<CanonicalMatrix> {
    if (!whole) return std::move(whole);
    return cut_columns(*whole, first, count, keeps_bias);
  };
  some.read = [read = part.read, cut](ThreadPool& pool) { return cut(read(pool)); };
  if (part.read_rows) {
    some.read_rows = [read = part.read_rows, cut](ThreadPool& pool, int64_t at, int64_t rows) {
      return cut(read(pool, at, rows));
    };
  }
  return some;
}

}  // namespace

Result<DescribedMatrix> MatrixShare::rows(DescribedMatrix&& matrix,
                                          const std::vector<RowRange>& ranges) {
  const int64_t block = std::max<int64_t>(matrix.shape().key.group.rows, 1);
  MatrixShape shape = matrix.shape();
  shape.n = 0;
  for (const RowRange& range : ranges) shape.n += range.end - range.begin;
  std::vector<std::vector<Part>> experts;
  for (const std::vector<Part>& parts : matrix.parts_) {
    std::vector<Part>& own = experts.emplace_back();
    for (const RowRange& range : ranges) {
      int64_t row = 0;
      for (const Part& part : parts) {
        const int64_t begin = std::max(range.begin - row, int64_t{0});
        const int64_t end = std::min(range.end - row, part.n);
        row += part.n;
        if (begin >= end) continue;
        if (begin % block != 0 || (end % block != 0 && end != part.n))
          return not_divided(matrix,
                             str("a share of whole blocks of ", block, " rows with a scale"),
                             str("the share is rows ", begin, " to ", end));
        own.push_back(rows_of(part, begin, end - begin));
      }
    }
  }
  DescribedMatrix share(shape, matrix.scheme_, std::move(experts), matrix.owner_);
  share.input_scales_ = matrix.input_scales_;
  return share;
}

Result<DescribedMatrix> MatrixShare::columns(DescribedMatrix&& matrix, int64_t begin, int64_t end,
                                             bool keeps_bias) {
  MatrixShape shape = matrix.shape();
  if (shape.group_index)
    return not_divided(matrix, "columns in the order of their groups",
                       "it is in act-order: a share of the columns has parts of all groups");
  int64_t group = 8 / std::min(bits(shape.key.dtype), 8);
  if (shape.key.quantized()) group = std::max(group, shape.key.group.cols);
  if (matrix.scheme_.activation) group = std::max(group, matrix.scheme_.activation->group.cols);
  if (begin % group != 0 || (end % group != 0 && end != shape.k))
    return not_divided(matrix, str("a share of whole groups of ", group, " columns with a scale"),
                       str("the share is columns ", begin, " to ", end));
  std::vector<std::vector<Part>> experts;
  for (const std::vector<Part>& parts : matrix.parts_) {
    std::vector<Part>& own = experts.emplace_back();
    for (const Part& part : parts)
      own.push_back(columns_of(part, shape.k, begin, end - begin, keeps_bias));
  }
  shape.key = cut_key(shape.key, shape.k, begin, end - begin);
  shape.k = end - begin;
  Scheme scheme = matrix.scheme_;
  scheme.weight.scale_dtype = shape.key.scale_dtype;
  DescribedMatrix share(shape, scheme, std::move(experts), matrix.owner_);
  share.input_scales_ = matrix.input_scales_;
  return share;
}

Result<DescribedMatrix> MatrixShare::columns_in_turns(DescribedMatrix&& matrix, int64_t size,
                                                      int64_t turns) {
  const MatrixShape& shape = matrix.shape();
  int64_t group = 8 / std::min(bits(shape.key.dtype), 8);
  if (shape.key.quantized()) group = std::max(group, shape.key.group.cols);
  const int64_t runs = shape.k / size;
  if (shape.group_index || size % group != 0 || shape.k % size != 0 || runs % turns != 0)
    return not_divided(matrix, str(turns, " turns of runs of ", size, " columns"),
                       str("it has ", shape.k, " columns in groups of ", group));
  const auto reorder = [=](Result<CanonicalMatrix>&& stored) -> Result<CanonicalMatrix> {
    if (!stored) return std::move(stored);
    const int64_t each = runs / turns;
    return reorder_columns(*stored, size,
                           [=](int64_t run) { return run % each * turns + run / each; });
  };
  for (std::vector<Part>& parts : matrix.parts_) {
    for (Part& part : parts) {
      part.read = [read = part.read, reorder](ThreadPool& pool) { return reorder(read(pool)); };
      if (!part.read_rows) continue;
      part.read_rows = [read = part.read_rows, reorder](ThreadPool& pool, int64_t at,
                                                        int64_t rows) {
        return reorder(read(pool, at, rows));
      };
    }
  }
  return std::move(matrix);
}

}  // namespace moracle
