#if defined(__x86_64__)

#include "kernels/cpu/line_panels.h"

#include <algorithm>
#include <bit>
#include <cstring>
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

bool is_folded(const MatrixShape& shape, Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kF32 ||
         (arithmetic == Arithmetic::kBf16 && vnni16::scale_is_exponent(shape));
}

}  // namespace

int64_t unit_cols(const MatrixShape& shape, Arithmetic arithmetic, int64_t x_group_cols) {
  const bool one = !shape.key.quantized() || vnni16::num_groups(shape) <= 1;
  const bool direct = is_direct(shape.key.dtype, arithmetic);
  int64_t cols = direct ? cpu::read_cols(arithmetic, shape.k) : max_stretch(arithmetic);
  // Units end where groups end: as long as all of them can be made of.
  if (!one && !is_folded(shape, arithmetic))
    cols = std::gcd(max_stretch(arithmetic), vnni16::group_cols(shape));
  return x_group_cols > 0 ? std::gcd(std::min(cols, max_stretch(arithmetic)), x_group_cols) : cols;
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
      unit_cols_(cpu::unit_cols(weights.shape, arithmetic, x_group_cols)),
      direct_(is_direct(weights.shape.key.dtype, arithmetic)),
      folded_(is_folded(weights.shape, arithmetic)),
      whole_groups_(arithmetic == Arithmetic::kBf16 && group_cols_ % 32 == 0 &&
                    unit_cols_ % group_cols_ == 0),
      by_group_(arithmetic != Arithmetic::kInt8 && (folded_ || !weights.shape.key.symmetric)) {}

LinePanels::Stretch LinePanels::stretch(int64_t column) const {
  const int64_t whole = (read_cols_ - column) / unit_cols_;
  if (whole == 0) return {column, 1, read_cols_ - column};
  // Units behind the last column hold nothing but padding.
  int64_t units = std::min(whole, (weights_.shape.k - column + unit_cols_ - 1) / unit_cols_);
  units = std::min(units, std::max<int64_t>(1, max_stretch(arithmetic_) / unit_cols_));
  // One scale of the activations for several units holds to the end of its group.
  if (x_group_cols_ > unit_cols_)
    units = std::min(units, (x_group_cols_ - column % x_group_cols_) / unit_cols_);
  return {column, static_cast<int>(units), unit_cols_};
}

const std::byte* LinePanels::lines(int64_t expert, int64_t panel, const Stretch& s, std::byte* room,
                                   const std::byte* prefetch) const {
  const std::byte* const from = codes(expert, panel);
  if (direct_) return from + s.first / cols_per_line_ * kLineBytes;
  if (!by_group_ || whole_groups_) {
    decode(expert, panel, s.first, s.last(), group_of(s.first), room, prefetch);
    return room;
  }
  for (int64_t first = s.first; first < s.last();) {
    const int64_t group = group_of(first);
    int64_t last = s.last();
    if (group < num_groups_ - 1) last = std::min(last, (group + 1) * group_cols_);
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
  if (whole_groups_) c.group_lines = group_cols_ / code_cols;
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
  alignas(64) std::byte exact[max_stretch(Arithmetic::kF32) * kLineRows * 2];
  alignas(64) float scales[kLineRows];
  c.to = exact;
  to_bf16(dtype)(c);
  LineCodes wide;
  wide.codes = exact;
  wide.lines = (last - first) / 2;
  wide.to = to;
  if (c.exponent == nullptr) {
    scales_of(expert, panel, group, scales);
    wide.scale = scales;
  }
  kAvx512Decoders.bf16_to_f32(wide);
}

void LinePanels::scales_of(int64_t expert, int64_t panel, int64_t group, float* room) const {
  const int64_t lanes = vnni16::scale_lanes(weights_.shape);
  const std::byte* const section = weights_.expert(expert) + weights_.sections.scales;
  const int64_t at = (panel * num_groups_ + group) * lanes;
  if (vnni16::scale_is_exponent(weights_.shape)) {
    // Half of it: int8 lines hold fp4 twice as large. Below the normal numbers there is nothing
    // left of a product.
    for (int n = 0; n < kLineRows; ++n) {
      const auto exponent = static_cast<uint32_t>(section[at + (lanes == 1 ? 0 : n)]);
      room[n] = std::bit_cast<float>((exponent > 1 ? exponent - 1 : 0) << 23);
    }
    return;
  }
  const float* const scales = reinterpret_cast<const float*>(section) + at;
  if (lanes == 1)
    std::fill_n(room, kLineRows, *scales);
  else
    std::memcpy(room, scales, kLineRows * sizeof(float));
}

const float* LinePanels::unit_scales(int64_t expert, int64_t panel, const Stretch& s,
                                     float* room) const {
  if (folded_ || num_groups_ == 1) return nullptr;
  for (int u = 0; u < s.units; ++u)
    scales_of(expert, panel, group_of(s.first + u * s.unit_cols), room + u * kLineRows);
  return room;
}

const int8_t* LinePanels::unit_zeros(int64_t expert, int64_t panel, const Stretch& s,
                                     int8_t* room) const {
  if (weights_.shape.key.symmetric || arithmetic_ != Arithmetic::kInt8) return nullptr;
  const std::byte* const zeros =
      weights_.expert(expert) + weights_.sections.zero_points + panel * num_groups_ * kLineRows;
  for (int u = 0; u < s.units; ++u) {
    const int64_t group = group_of(s.first + u * s.unit_cols);
    std::memcpy(room + u * kLineRows, zeros + group * kLineRows, kLineRows);
  }
  return room;
}

const float* LinePanels::row_scales(int64_t expert, int64_t panel, float* room) const {
  if (folded_ || num_groups_ > 1 || !weights_.shape.key.quantized()) return nullptr;
  scales_of(expert, panel, 0, room);
  return room;
}

const float* LinePanels::bias(int64_t expert, int64_t panel) const {
  if (!weights_.shape.bias) return nullptr;
  return reinterpret_cast<const float*>(weights_.expert(expert) + weights_.sections.bias) +
         panel * kLineRows;
}

}  // namespace moracle::cpu

#endif
