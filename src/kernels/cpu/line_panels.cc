#include "kernels/cpu/line_panels.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/cpu/packed_rows.h"

namespace moracle::cpu {
namespace {

using Decode = void (*)(const LineCodes&);

Decode to_bf16(DType dtype) {
  switch (dtype) {
    case DType::kI4:
      return kAvx512Decoders.i4_to_bf16;
    case DType::kI8:
      return kAvx512Decoders.i8_to_bf16;
    case DType::kF8E4M3:
      return kAvx512Decoders.e4m3_to_bf16;
    default:
      return kAvx512Decoders.e2m1_to_bf16;
  }
}

bool is_direct(DType dtype, Arithmetic arithmetic) {
  return (arithmetic == Arithmetic::kInt8 && dtype == DType::kI8) ||
         (arithmetic == Arithmetic::kBf16 && dtype == DType::kBF16) ||
         (arithmetic == Arithmetic::kF32 && dtype == DType::kF32);
}

}  // namespace

int64_t stretch_cols(const MatrixShape& shape, Arithmetic arithmetic) {
  const int64_t cols = cpu::read_cols(arithmetic, shape.k);
  const bool one = !shape.key.quantized() || vnni16::num_groups(shape) <= 1;
  if (is_direct(shape.key.dtype, arithmetic) && one) return cols;
  if (arithmetic != Arithmetic::kInt8 || one) return kStretchCols;
  // Groups end where a stretch ends: it is as long as all of them can be made of.
  return std::gcd(kStretchCols, vnni16::group_cols(shape));
}

LinePanels::LinePanels(const KernelWeights& weights, Arithmetic arithmetic, int64_t x_group_cols)
    : weights_(weights),
      arithmetic_(arithmetic),
      num_panels_(vnni16::num_panels(weights.shape)),
      num_groups_(weights.shape.key.quantized() ? vnni16::num_groups(weights.shape) : 1),
      group_cols_(weights.shape.key.quantized() ? vnni16::group_cols(weights.shape)
                                                : weights.shape.k),
      x_group_cols_(x_group_cols),
      cols_per_line_(arithmetic == Arithmetic::kInt8   ? 4
                     : arithmetic == Arithmetic::kBf16 ? 2
                                                       : 1),
      read_cols_(cpu::read_cols(arithmetic, weights.shape.k)),
      stretch_cols_(cpu::stretch_cols(weights.shape, arithmetic)),
      direct_(is_direct(weights.shape.key.dtype, arithmetic)),
      folded_(arithmetic == Arithmetic::kF32 ||
              (arithmetic == Arithmetic::kBf16 && vnni16::scale_is_exponent(weights.shape))) {}

LinePanels::Stretch LinePanels::stretch(int64_t column) const {
  if (stretch_cols_ >= read_cols_ && num_groups_ == 1 && x_group_cols_ == 0)
    return {0, read_cols_, 0, 0, 0};
  Stretch s{column, std::min(column + std::min(stretch_cols_, kStretchCols), read_cols_), 0, 0,
            column / stretch_cols_};
  // Past the last group lies padding, which belongs to it.
  auto cut = [&](int64_t cols, int64_t groups) {
    const int64_t group = std::min(column / cols, groups - 1);
    if (group < groups - 1) s.last = std::min(s.last, (group + 1) * cols);
    return group;
  };
  if (!folded_) s.group = cut(group_cols_, num_groups_);
  if (x_group_cols_ > 0)
    s.x_group = cut(x_group_cols_, (weights_.shape.k + x_group_cols_ - 1) / x_group_cols_);
  return s;
}

const std::byte* LinePanels::lines(int64_t expert, int64_t panel, const Stretch& s, std::byte* room,
                                   const std::byte* prefetch) const {
  const std::byte* const from = codes(expert, panel);
  if (direct_) return from + s.first / cols_per_line_ * kLineBytes;
  // Where scales are folded into the values, several groups lie in a stretch.
  for (int64_t first = s.first; first < s.last;) {
    const int64_t group = std::min(first / group_cols_, num_groups_ - 1);
    const int64_t end = group == num_groups_ - 1 ? s.last : (group + 1) * group_cols_;
    const int64_t last = std::min(s.last, end);
    decode(expert, panel, first, last, group,
           room + (first - s.first) / cols_per_line_ * kLineBytes, prefetch);
    first = last;
  }
  return room;
}

void LinePanels::decode(int64_t expert, int64_t panel, int64_t first, int64_t last, int64_t group,
                        std::byte* to, const std::byte* prefetch) const {
  const MatrixShape& shape = weights_.shape;
  const DType dtype = shape.key.dtype;
  const int64_t code_cols = vnni16::line_cols(dtype), at = first / code_cols * kLineBytes;
  const int64_t index = panel * num_groups_ + group;
  const std::byte* const base = weights_.expert(expert);
  LineCodes c;
  c.codes = codes(expert, panel) + at;
  c.lines = (last - first + code_cols - 1) / code_cols;
  c.to = to;
  if (prefetch != nullptr) c.prefetch = prefetch + at;
  if (!shape.key.symmetric)
    c.zero =
        reinterpret_cast<const int8_t*>(base + weights_.sections.zero_points) + index * kLineRows;
  if (vnni16::scale_is_exponent(shape)) {
    c.exponent_lanes = static_cast<int>(vnni16::scale_lanes(shape));
    c.exponent = reinterpret_cast<const uint8_t*>(base + weights_.sections.scales) +
                 index * c.exponent_lanes;
  }
  if (arithmetic_ == Arithmetic::kBf16) return to_bf16(dtype)(c);
  if (arithmetic_ == Arithmetic::kInt8)
    return dtype == DType::kI4 ? kAvx512Decoders.i4_to_int8(c) : kAvx512Decoders.e2m1_to_int8(c);
  if (dtype == DType::kF16) return kAvx512Decoders.f16_to_f32(c);
  if (dtype == DType::kBF16) return kAvx512Decoders.bf16_to_f32(c);
  alignas(64) std::byte exact[kStretchCols * kLineRows * 2];
  alignas(64) float scales[kLineRows];
  c.to = exact;
  to_bf16(dtype)(c);
  LineCodes wide;
  wide.codes = exact;
  wide.lines = (last - first) / 2;
  wide.to = to;
  wide.scale = c.exponent != nullptr ? nullptr : scales_of(expert, panel, group, scales);
  kAvx512Decoders.bf16_to_f32(wide);
}

const float* LinePanels::scales_of(int64_t expert, int64_t panel, int64_t group,
                                   float* room) const {
  const int64_t lanes = vnni16::scale_lanes(weights_.shape);
  if (vnni16::scale_is_exponent(weights_.shape)) {
    const auto* e = reinterpret_cast<const uint8_t*>(weights_.expert(expert)) +
                    weights_.sections.scales + (panel * num_groups_ + group) * lanes;
    // Half of it: int8 lines hold fp4 twice as large. Below the normal numbers there is nothing
    // left of a product.
    for (int n = 0; n < kLineRows; ++n) {
      const uint32_t exponent = e[lanes == 1 ? 0 : n];
      room[n] = std::bit_cast<float>((exponent > 1 ? exponent - 1 : 0) << 23);
    }
    return room;
  }
  const auto* scales =
      reinterpret_cast<const float*>(weights_.expert(expert) + weights_.sections.scales) +
      (panel * num_groups_ + group) * lanes;
  if (lanes != 1) return scales;
  std::fill_n(room, kLineRows, *scales);
  return room;
}

const float* LinePanels::stretch_scales(int64_t expert, int64_t panel, const Stretch& s,
                                        float* room) const {
  if (folded_ || num_groups_ == 1) return nullptr;
  return scales_of(expert, panel, s.group, room);
}

const int8_t* LinePanels::stretch_zeros(int64_t expert, int64_t panel, const Stretch& s) const {
  if (weights_.shape.key.symmetric || arithmetic_ != Arithmetic::kInt8) return nullptr;
  return reinterpret_cast<const int8_t*>(weights_.expert(expert)) + weights_.sections.zero_points +
         (panel * num_groups_ + s.group) * kLineRows;
}

const float* LinePanels::row_scales(int64_t expert, int64_t panel, float* room) const {
  if (folded_ || num_groups_ > 1 || !weights_.shape.key.quantized()) return nullptr;
  return scales_of(expert, panel, 0, room);
}

const float* LinePanels::bias(int64_t expert, int64_t panel) const {
  if (!weights_.shape.bias) return nullptr;
  return reinterpret_cast<const float*>(weights_.expert(expert) + weights_.sections.bias) +
         panel * kLineRows;
}

}  // namespace moracle::cpu
