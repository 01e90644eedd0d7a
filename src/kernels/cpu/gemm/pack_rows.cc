#include "kernels/cpu/gemm/pack_rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/gemm/expert_rows.h"
#include "kernels/cpu/simd/vector_ops.h"
#include "oracle/carve.h"

namespace moracle::cpu {
namespace {

int64_t element_bytes(Operand arithmetic) {
  return arithmetic == Operand::kInt8 ? 1 : arithmetic == Operand::kF32 ? 4 : 2;
}

PackedRows carve(const RowForm& form, int64_t rows, std::byte* memory, size_t* bytes) {
  Carver carver(memory);
  PackedRows packed;
  packed.stride = packed_stride(form);
  if (form.two_terms) packed.rest = read_cols(form.x, form.k) * element_bytes(form.x);
  packed.values = carver.take<std::byte>((rows + kMaxBlockRows) * packed.stride);
  const bool int16 = form.x == Operand::kInt16;
  const bool integers = int16 || form.x == Operand::kInt8 || form.skinny == Operand::kInt8;
  packed.num_sums = integers ? (form.k + form.segment - 1) / form.segment : 0;
  const int64_t limbs = form.skinny_in_limbs ? kLimbs : 1;
  packed.sums = carver.take<int32_t>(rows * limbs * packed.num_sums);
  if (form.skinny_in_limbs) packed.limb_stride = packed.stride / kLimbs;
  if (form.skinny_in_limbs || int16) {
    packed.num_segment_scales = (packed.num_sums + form.scale_segments - 1) / form.scale_segments;
    packed.segment_scales = carver.take<float>(rows * limbs * packed.num_segment_scales);
  }
  packed.scales = carver.take<float>(rows * form.num_scales);
  packed.num_scales = form.num_scales;
  packed.num_minimums =
      form.minimum_cols > 0 ? (form.k + form.minimum_cols - 1) / form.minimum_cols : 0;
  packed.minimum_sums = carver.take<float>(rows * packed.num_minimums);
  if (bytes != nullptr) *bytes = carver.bytes();
  return packed;
}

// Rows of f32 or int8 codes as they are, or codes as f32.
void copy_values(const PackArgs& a, DType from, Operand to) {
  const auto* const int8 = static_cast<const int8_t*>(a.from);
  auto* const floats = reinterpret_cast<float*>(a.to);
  if (from == DType::kF32) {
    std::memcpy(a.to, a.from, a.count * sizeof(float));
  } else if (to == Operand::kInt8) {
    std::memcpy(a.to, a.from, a.count);
    vector_ops().code_sums(int8, a.count, a.segment, a.sums);
  } else if (from == DType::kI8) {
    vector_ops().dequantize_int8(int8, a.count, 1.0f, floats);
  } else {
    vector_ops().dequantize_e4m3(static_cast<const uint8_t*>(a.from), a.count, 1.0f, floats);
  }
}

}  // namespace

int64_t read_cols(Operand arithmetic, int64_t k) {
  const int64_t tile = 16 * 4 / element_bytes(arithmetic);
  return (k + tile - 1) / tile * tile;
}

// Add one cache line to the columns' bytes: rows a power of two apart would share the same few sets
// of the first-level cache.
int64_t packed_stride(const RowForm& form) {
  const int64_t bytes = std::max(element_bytes(form.skinny), element_bytes(form.x));
  const int64_t stride = read_cols(form.x, form.k) * (form.two_terms ? 4 : bytes) + kRowBlockBytes;
  if (!form.skinny_in_limbs) return stride;
  constexpr int64_t kMultiple = kLimbs * kRowBlockBytes;
  const int64_t limbs = kLimbs * read_cols(Operand::kInt8, form.k);
  return (std::max(stride, limbs) + kMultiple - 1) / kMultiple * kMultiple;
}

size_t packed_bytes(const RowForm& form, int64_t rows) {
  size_t bytes = 0;
  carve(form, rows, nullptr, &bytes);
  return bytes;
}

RowPacker::RowPacker(const RowForm& form, const GroupedRows& from, const UkernelSet& kernels)
    : form_(form),
      from_(from),
      main_(kernels.pack(from.x.values.dtype, form.x)),
      skinny_(kernels.pack(from.x.values.dtype, form.skinny)) {
  const bool scaled = from.x.scales != nullptr && from.x.values.dtype != DType::kF32;
  form_.num_scales = scaled ? from.x.num_scales : 0;
}

PackedRows RowPacker::scratch(int64_t rows, std::byte* memory) const {
  return carve(form_, rows, memory, nullptr);
}

void RowPacker::pack(const PackedRows& to, int64_t at, int64_t first, int64_t past,
                     bool skinny) const {
  for (int64_t r = first; r < past; ++r) pack_row(to, at + r - first, r, skinny);
}

void RowPacker::split(const PackedRows& to, int64_t first, int64_t past, const ExpertRows& rows,
                      int skinny_rows, ThreadPool& pool) const {
  auto some = [&](int64_t begin, int64_t end) {
    begin += first, end += first;
    int64_t e = rows.with_rows(0);
    bool before = false;  // whether the previous row is for few rows
    for (int64_t r = begin; r < end; ++r) {
      while (rows.past(e) <= r) ++e;
      const bool skinny = rows.all_rows(e) <= skinny_rows;
      if (r > begin && skinny == before && source_of(r) == source_of(r - 1))
        copy_row(to, r - first - 1);
      else
        pack_row(to, r - first, r, skinny);
      before = skinny;
    }
  };
  // Below this size, waking the threads takes longer than the work.
  constexpr int64_t kAlone = 256 << 10;
  if ((past - first) * to.stride < kAlone)
    some(0, past - first);
  else
    pool.split(past - first, some);
}

// Convert a few codes to floats at a time: whole groups, or parts of one long group.
void RowPacker::sum_groups(const void* from, int64_t source, float* sums) const {
  const Rows& x = from_.x;
  const int64_t group = form_.minimum_cols;
  if (x.values.dtype == DType::kF32)
    return vector_ops().group_sums(static_cast<const float*>(from), form_.k, group, sums);
  constexpr int64_t kMost = 512;
  const int64_t step = group < kMost ? kMost / group * group : kMost;
  const bool scaled = form_.num_scales > 1;
  const int64_t x_cols = scaled ? form_.scale_cols : form_.k;
  alignas(64) float floats[kMost], of_groups[kMost];
  std::fill_n(sums, (form_.k + group - 1) / group, 0.0f);
  for (int64_t first = 0; first < form_.k;) {
    int64_t past = std::min(form_.k, first + step);
    if (group >= kMost) past = std::min(past, first - first % group + group);
    for (int64_t c = first; c < past;) {
      const int64_t end = std::min(past, c - c % x_cols + x_cols);
      const float scale = scaled ? x.scales[source * form_.num_scales + c / x_cols] : 1.0f;
      if (x.values.dtype == DType::kI8)
        vector_ops().dequantize_int8(static_cast<const int8_t*>(from) + c, end - c, scale,
                                     floats + (c - first));
      else
        vector_ops().dequantize_e4m3(static_cast<const uint8_t*>(from) + c, end - c, scale,
                                     floats + (c - first));
      c = end;
    }
    vector_ops().group_sums(floats, past - first, group, of_groups);
    for (int64_t g = 0; g * group < past - first; ++g) sums[first / group + g] += of_groups[g];
    first = past;
  }
}

// A token's rows are equal for all of its experts. Making limbs takes ten times as long as copying
// them.
void RowPacker::copy_row(const PackedRows& packed, int64_t at) const {
  const int64_t limbs = form_.skinny_in_limbs ? kLimbs : 1;
  const auto copy = [at](auto* rows, int64_t count) {
    if (rows != nullptr)
      std::memcpy(rows + (at + 1) * count, rows + at * count, count * sizeof *rows);
  };
  copy(packed.values, packed.stride);
  copy(packed.sums, limbs * packed.num_sums);
  copy(packed.segment_scales, limbs * packed.num_segment_scales);
  copy(packed.scales, packed.num_scales);
  copy(packed.minimum_sums, packed.num_minimums);
}

void RowPacker::pack_row(const PackedRows& packed, int64_t at, int64_t r, bool skinny) const {
  const Rows& x = from_.x;
  const int64_t source = source_of(r);
  PackArgs a;
  a.from = static_cast<const std::byte*>(x.values.data) +
           source * (x.values.stride * bits(x.values.dtype) / 8);
  a.count = form_.k;
  a.to = packed.values + at * packed.stride;
  a.order = form_.order;
  a.segment = form_.segment;
  a.segments = packed.num_sums;
  if (packed.num_minimums > 0)
    sum_groups(a.from, source, packed.minimum_sums + at * packed.num_minimums);
  if (skinny ? form_.skinny_in_limbs : form_.in_limbs) {
    a.sums = packed.sums + at * kLimbs * packed.num_sums;
    a.scales = packed.segment_scales + at * kLimbs * packed.num_segment_scales;
    a.scale_segments = form_.scale_segments;
    a.limb_stride = packed.limb_stride;
    skinny_->fn(a);
    for (int p = 0; p < kLimbs; ++p)
      std::memset(a.to + p * a.limb_stride + form_.k, 0, a.limb_stride - form_.k);
    return;
  }
  const Operand arithmetic = skinny ? form_.skinny : form_.x;
  const bool two_terms = form_.two_terms && arithmetic == Operand::kBf16;
  if (two_terms) a.low = a.to + packed.rest;
  if (packed.sums != nullptr) a.sums = packed.sums + at * packed.num_sums;
  if (packed.segment_scales != nullptr)
    a.scales = packed.segment_scales + at * packed.num_segment_scales;
  if (const PackKernel* const kernel = skinny ? skinny_ : main_)
    kernel->fn(a);
  else
    copy_values(a, x.values.dtype, arithmetic);
  const bool eights = arithmetic == Operand::kInt16 ||
                      (arithmetic == Operand::kBf16 && form_.order != ColumnOrder::kPlain);
  const int64_t columns = eights ? (form_.k + 7) / 8 * 8 : form_.k;
  const int64_t used = columns * element_bytes(arithmetic);
  const int64_t whole = two_terms ? packed.rest : packed.stride;
  std::memset(a.to + used, 0, whole - used);
  if (two_terms) std::memset(a.to + packed.rest + used, 0, packed.stride - packed.rest - used);
  for (int64_t s = 0; s < form_.num_scales; ++s)
    packed.scales[at * form_.num_scales + s] = x.scales[source * form_.num_scales + s];
}

}  // namespace moracle::cpu
