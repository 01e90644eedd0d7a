// A linear layer in memory: the matrix of one expert, without the dimension of experts.
#include "checkpoint/memory/stored_linear.h"

#include "base/try.h"
#include "checkpoint/memory/stored_matrix.h"

namespace moracle {
namespace {

void add_expert(TensorView& view) {
  if (view.data != nullptr) view.shape.insert(view.shape.begin(), 1);
}

// Messages show tensors as the caller has them.
Error without_expert(Error error) {
  for (std::string* text : {&error.need, &error.fact, &error.place}) {
    for (const std::string_view one : {"[1, ", "[experts, ", ", expert 0"}) {
      const size_t at = text->find(one);
      if (at != std::string::npos) text->replace(at, one.size(), one.front() == '[' ? "[" : "");
    }
  }
  return error;
}

// Columns of a weight whose rows are known to be right.
int64_t columns_of(const TensorView& weight, Packing packing, const QuantKey& key) {
  const auto per_byte = [&](int64_t bytes) { return bytes * 8 / bits(key.dtype); };
  if (packing == Packing::kAwq) return weight.shape[1];
  if (packing != Packing::kRows) return per_byte(weight.shape[1] * 4);
  if (weight.shape.size() == 4) return weight.shape[2] * per_byte(weight.shape[3]);
  if (weight.dtype == DType::kI32) return per_byte(weight.shape[2] * 4);
  return weight.dtype == DType::kU8 ? per_byte(weight.shape[2]) : weight.shape[2];
}

}  // namespace

Result<DescribedMatrix> describe(StoredLinear stored, const Scheme& scheme) {
  StoredMatrix& parts = stored.matrix;
  for (TensorView* view : {&parts.weight, &parts.scales, &parts.zero_points, &parts.group_index,
                           &parts.bias, &parts.input_scales})
    add_expert(*view);
  const Result<int64_t> rows = rows_of(parts, stored.packing);
  if (!rows) return without_expert(rows.error());
  const int64_t columns = columns_of(parts.weight, stored.packing, scheme.weight);
  Result<MemoryMatrix> opened =
      MemoryMatrix::open(parts, stored.packing, scheme, *rows, columns, stored.read);
  if (!opened) return without_expert(opened.error());
  Result<std::vector<float>> input_scales = opened->input_scales();
  if (!input_scales) return without_expert(input_scales.error());
  const auto matrix = std::make_shared<const MemoryMatrix>(*std::move(opened));
  DescribedMatrix::Source source;
  source.n = *rows;
  source.source_bytes = matrix->expert_bytes();
  source.read = [matrix](ThreadPool& pool) -> Result<CanonicalMatrix> {
    Result<CanonicalMatrix> read = matrix->read(0, pool);
    if (!read) return without_expert(read.error());
    return read;
  };
  std::vector<std::vector<DescribedMatrix::Source>> sources(1);
  sources.front().push_back(std::move(source));
  DescribedMatrix described(matrix->shape(), scheme, std::move(sources), std::move(stored.owner));
  described.set_input_scales(*std::move(input_scales));
  return described;
}

}  // namespace moracle
