#include "kernels/cpu/gemm/pack_rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/gemm/expert_rows.h"
#include "oracle/carve.h"

namespace moracle::cpu {
namespace {

int64_t element_bytes(LineArithmetic arithmetic) {
  return arithmetic == LineArithmetic::kInt8 ? 1 : arithmetic == LineArithmetic::kF32 ? 4 : 2;
}

PackedRows carve(const RowForm& form, int64_t rows, std::byte* memory, size_t* bytes) {
  Carver carver(memory);
  PackedRows packed;
  packed.stride = packed_stride(form);
  if (form.two_parts)
    packed.rest = read_cols(form.arithmetic, form.k) * element_bytes(form.arithmetic);
  packed.values = carver.take<std::byte>((rows + kMaxBlockRows) * packed.stride);
  const bool int16 = form.arithmetic == LineArithmetic::kInt16;
  const bool integers =
      int16 || form.arithmetic == LineArithmetic::kInt8 || form.few == LineArithmetic::kInt8;
  packed.num_sums = integers ? (form.k + form.unit - 1) / form.unit : 0;
  const int64_t parts = form.few_in_parts ? kFloatParts : 1;
  packed.sums = carver.take<int32_t>(rows * parts * packed.num_sums);
  if (form.few_in_parts) packed.part_stride = packed.stride / kFloatParts;
  if (form.few_in_parts || int16)
    packed.unit_scales = carver.take<float>(rows * parts * packed.num_sums);
  packed.scales = carver.take<float>(rows * form.num_scales);
  packed.num_scales = form.num_scales;
  if (bytes != nullptr) *bytes = carver.bytes();
  return packed;
}

}  // namespace

int64_t read_cols(LineArithmetic arithmetic, int64_t k) {
  const int64_t tile = 16 * 4 / element_bytes(arithmetic);
  return (k + tile - 1) / tile * tile;
}

// Add one cache line to the columns' bytes: rows a power of two apart would share the same few sets
// of the first-level cache.
int64_t packed_stride(const RowForm& form) {
  const int64_t bytes = std::max(element_bytes(form.few), element_bytes(form.arithmetic));
  const int64_t stride =
      read_cols(form.arithmetic, form.k) * (form.two_parts ? 4 : bytes) + kLineBytes;
  if (!form.few_in_parts) return stride;
  constexpr int64_t kParts = kFloatParts * kLineBytes;
  const int64_t parts = kFloatParts * read_cols(LineArithmetic::kInt8, form.k);
  return (std::max(stride, parts) + kParts - 1) / kParts * kParts;
}

size_t packed_bytes(const RowForm& form, int64_t rows) {
  size_t bytes = 0;
  carve(form, rows, nullptr, &bytes);
  return bytes;
}

RowPacker::RowPacker(const RowForm& form, const GroupedRows& from, const RowConverters& convert)
    : form_(form), from_(from), convert_(convert) {
  const bool scaled = from.x.scales != nullptr && from.x.values.dtype != DType::kF32;
  form_.num_scales = scaled ? from.x.num_scales : 0;
}

PackedRows RowPacker::scratch(int64_t rows, std::byte* memory) const {
  return carve(form_, rows, memory, nullptr);
}

void RowPacker::pack(const PackedRows& to, int64_t at, int64_t first, int64_t past,
                     bool few) const {
  for (int64_t r = first; r < past; ++r) pack_row(to, at + r - first, r, few);
}

void RowPacker::split(const PackedRows& to, int64_t first, int64_t past, const ExpertRows& rows,
                      int few_rows, ThreadPool& pool) const {
  auto some = [&](int64_t begin, int64_t end) {
    begin += first, end += first;
    int64_t e = rows.with_rows(0);
    for (int64_t r = begin; r < end; ++r) {
      while (rows.past(e) <= r) ++e;
      pack_row(to, r - first, r, rows.all_rows(e) <= few_rows);
    }
  };
  // Below this size, waking the threads takes longer than the work.
  constexpr int64_t kAlone = 256 << 10;
  if ((past - first) * to.stride < kAlone)
    some(0, past - first);
  else
    pool.split(past - first, some);
}

void RowPacker::pack_row(const PackedRows& packed, int64_t at, int64_t r, bool few) const {
  const Rows& x = from_.x;
  const int64_t source = from_.row_index ? from_.row_index[from_.first_row + r] : r;
  const auto* row = static_cast<const std::byte*>(x.values.data) +
                    source * (x.values.stride * bits(x.values.dtype) / 8);
  std::byte* const to = packed.values + at * packed.stride;
  if (few && form_.few_in_parts) {
    const int64_t first = at * kFloatParts * packed.num_sums;
    convert_.f32_to_parts(reinterpret_cast<const float*>(row), form_.k, form_.unit, packed.num_sums,
                          to, packed.part_stride, packed.sums + first, packed.unit_scales + first);
    for (int p = 0; p < kFloatParts; ++p)
      std::memset(to + p * packed.part_stride + form_.k, 0, packed.part_stride - form_.k);
    return;
  }
  const LineArithmetic arithmetic = few ? form_.few : form_.arithmetic;
  const bool two_parts = form_.two_parts && arithmetic == LineArithmetic::kBf16;
  convert_row(packed, row, arithmetic, two_parts, at);
  const bool eights = arithmetic == LineArithmetic::kInt16 ||
                      (arithmetic == LineArithmetic::kBf16 && form_.order != ColumnOrder::kPlain);
  const int64_t columns = eights ? (form_.k + 7) / 8 * 8 : form_.k;
  const int64_t used = columns * element_bytes(arithmetic);
  const int64_t whole = two_parts ? packed.rest : packed.stride;
  std::memset(to + used, 0, whole - used);
  if (two_parts) std::memset(to + packed.rest + used, 0, packed.stride - packed.rest - used);
  for (int64_t s = 0; s < form_.num_scales; ++s)
    packed.scales[at * form_.num_scales + s] = x.scales[source * form_.num_scales + s];
}

void RowPacker::convert_row(const PackedRows& packed, const std::byte* row,
                            LineArithmetic arithmetic, bool two_parts, int64_t at) const {
  std::byte* const to = packed.values + at * packed.stride;
  const DType dtype = from_.x.values.dtype;
  const auto* const i8 = reinterpret_cast<const int8_t*>(row);
  const auto* const e4m3 = reinterpret_cast<const uint8_t*>(row);
  const auto* const f32 = reinterpret_cast<const float*>(row);
  switch (arithmetic) {
    case LineArithmetic::kInt8:
      return convert_.copy_int8(i8, form_.k, form_.unit, to, packed.sums + at * packed.num_sums);
    case LineArithmetic::kBf16:
      if (dtype == DType::kI8) return convert_.int8_to_bf16(i8, form_.k, form_.order, to);
      if (dtype == DType::kF8E4M3) return convert_.e4m3_to_bf16(e4m3, form_.k, form_.order, to);
      return convert_.f32_to_bf16(f32, form_.k, form_.order, to,
                                  two_parts ? to + packed.rest : nullptr);
    case LineArithmetic::kInt16:
      return convert_.f32_to_int16(f32, form_.k, form_.unit, to, packed.sums + at * packed.num_sums,
                                   packed.unit_scales + at * packed.num_sums);
    case LineArithmetic::kF32:
      if (dtype == DType::kI8) return convert_.int8_to_f32(i8, form_.k, to);
      if (dtype == DType::kF8E4M3) return convert_.e4m3_to_f32(e4m3, form_.k, to);
      std::memcpy(to, f32, form_.k * sizeof(float));
  }
}

}  // namespace moracle::cpu
