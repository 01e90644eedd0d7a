#include "checkpoint/experts/matrix_share.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "base/try.h"
#include "quant/cut.h"

namespace moracle {
namespace {

using Source = DescribedMatrix::Source;

Error not_divided(const DescribedMatrix& matrix, std::string need, std::string fact) {
  const std::vector<std::string> modules = matrix.modules();
  return {ErrorKind::kUnsupported, "", modules.empty() ? "matrix" : modules.front(),
          std::move(need), std::move(fact)};
}

Source rows_of(const Source& source, int64_t first, int64_t count) {
  Source some = source;
  some.n = count;
  some.source_bytes = source.source_bytes * count / source.n;
  if (!source.read_rows) {
    some.read = [read = source.read, first, count](ThreadPool& pool) -> Result<CanonicalMatrix> {
      MORACLE_TRY(CanonicalMatrix whole, read(pool));
      return cut_rows(std::move(whole), first, count);
    };
    return some;
  }
  some.read = [read = source.read_rows, first, count](ThreadPool& pool) {
    return read(pool, first, count);
  };
  some.read_rows = [read = source.read_rows, first](ThreadPool& pool, int64_t at, int64_t rows) {
    return read(pool, first + at, rows);
  };
  return some;
}

Source columns_of(const Source& source, int64_t k, int64_t first, int64_t count, bool keeps_bias) {
  Source some = source;
  some.source_bytes = source.source_bytes * count / k;
  const auto cut = [=](Result<CanonicalMatrix>&& whole) -> Result<CanonicalMatrix> {
    if (!whole) return std::move(whole);
    return cut_columns(*whole, first, count, keeps_bias);
  };
  some.read = [read = source.read, cut](ThreadPool& pool) { return cut(read(pool)); };
  if (source.read_rows) {
    some.read_rows = [read = source.read_rows, cut](ThreadPool& pool, int64_t at, int64_t rows) {
      return cut(read(pool, at, rows));
    };
  }
  return some;
}

}  // namespace

DescribedMatrix MatrixShare::divide_blocks(DescribedMatrix&& matrix, int64_t rows) {
  const int64_t block = matrix.shape().key.group.rows;
  if (block <= 0 || rows % block == 0) return std::move(matrix);
  const int64_t finer = std::gcd(block, rows);
  for (std::vector<Source>& sources : matrix.sources_) {
    for (Source& source : sources) {
      source.read = [read = std::move(source.read),
                     finer](ThreadPool& pool) -> Result<CanonicalMatrix> {
        MORACLE_TRY(CanonicalMatrix whole, read(pool));
        return moracle::divide_blocks(std::move(whole), finer);
      };
      source.read_rows = nullptr;  // it reads whole blocks of the file
    }
  }
  matrix.shape_.key.group.rows = finer;
  matrix.scheme_.weight.group.rows = finer;
  return std::move(matrix);
}

Result<DescribedMatrix> MatrixShare::rows(DescribedMatrix&& matrix,
                                          const std::vector<RowRange>& ranges) {
  const int64_t block = std::max<int64_t>(matrix.shape().key.group.rows, 1);
  MatrixShape shape = matrix.shape();
  shape.n = 0;
  for (const RowRange& range : ranges) shape.n += range.end - range.begin;
  std::vector<std::vector<Source>> experts;
  for (const std::vector<Source>& sources : matrix.sources_) {
    std::vector<Source>& own = experts.emplace_back();
    for (const RowRange& range : ranges) {
      int64_t row = 0;
      for (const Source& source : sources) {
        const int64_t begin = std::max(range.begin - row, int64_t{0});
        const int64_t end = std::min(range.end - row, source.n);
        row += source.n;
        if (begin >= end) continue;
        if (begin % block != 0 || (end % block != 0 && end != source.n))
          return not_divided(matrix,
                             str("a share of whole blocks of ", block, " rows with a scale"),
                             str("the share is rows ", begin, " to ", end));
        own.push_back(rows_of(source, begin, end - begin));
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
  std::vector<std::vector<Source>> experts;
  for (const std::vector<Source>& sources : matrix.sources_) {
    std::vector<Source>& own = experts.emplace_back();
    for (const Source& source : sources)
      own.push_back(columns_of(source, shape.k, begin, end - begin, keeps_bias));
  }
  shape.key = cut_key(shape.key, shape.k, begin, end - begin);
  shape.k = end - begin;
  Scheme scheme = matrix.scheme_;
  scheme.weight.scale_dtype = shape.key.scale_dtype;
  DescribedMatrix share(shape, scheme, std::move(experts), matrix.owner_);
  share.input_scales_ = matrix.input_scales_;
  return share;
}

Result<DescribedMatrix> MatrixShare::interleaved_columns(DescribedMatrix&& matrix, int64_t size,
                                                         int64_t strides) {
  const MatrixShape& shape = matrix.shape();
  int64_t group = 8 / std::min(bits(shape.key.dtype), 8);
  if (shape.key.quantized()) group = std::max(group, shape.key.group.cols);
  const int64_t runs = shape.k / size;
  if (shape.group_index || size % group != 0 || shape.k % size != 0 || runs % strides != 0)
    return not_divided(matrix, str(strides, " interleaved runs of ", size, " columns"),
                       str("it has ", shape.k, " columns in groups of ", group));
  const auto reorder = [=](Result<CanonicalMatrix>&& stored) -> Result<CanonicalMatrix> {
    if (!stored) return std::move(stored);
    const int64_t each = runs / strides;
    return reorder_columns(*stored, size,
                           [=](int64_t run) { return run % each * strides + run / each; });
  };
  for (std::vector<Source>& sources : matrix.sources_) {
    for (Source& source : sources) {
      source.read = [read = source.read, reorder](ThreadPool& pool) { return reorder(read(pool)); };
      if (!source.read_rows) continue;
      source.read_rows = [read = source.read_rows, reorder](ThreadPool& pool, int64_t at,
                                                            int64_t rows) {
        return reorder(read(pool, at, rows));
      };
    }
  }
  matrix.shape_.key = cut_key(shape.key, shape.k, size, size);
  matrix.scheme_.weight.scale_dtype = matrix.shape_.key.scale_dtype;
  return std::move(matrix);
}

}  // namespace moracle
