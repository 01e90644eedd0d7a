#include "kernels/cpu/gemm/weight_panels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "kernels/cpu/gemm/pack_rows.h"

namespace moracle::cpu {
namespace {

using Decode = void (*)(const LineCodes&);

Decode decoder_of(const LineDecoders& decoders, LineArithmetic to, DType dtype) {
  const bool bf16 = to == LineArithmetic::kBf16, int8 = to == LineArithmetic::kInt8;
  switch (dtype) {
    case DType::kI4:
      return int8 ? decoders.i4_to_int8 : bf16 ? decoders.i4_to_bf16 : decoders.i4_to_f32;
    case DType::kI8:
      return bf16 ? decoders.i8_to_bf16 : decoders.i8_to_f32;
    case DType::kF8E4M3:
      return bf16 ? decoders.e4m3_to_bf16 : decoders.e4m3_to_f32;
    case DType::kF4E2M1:
      return int8 ? decoders.e2m1_to_int8 : bf16 ? decoders.e2m1_to_bf16 : decoders.e2m1_to_f32;
    default:
      return nullptr;  // multiplied as stored
  }
}

bool is_direct(DType dtype, LineForm form) {
  return form.by_codes || (form.arithmetic == LineArithmetic::kInt8 && dtype == DType::kI8) ||
         (form.arithmetic == LineArithmetic::kBf16 && dtype == DType::kBF16) ||
         (form.arithmetic == LineArithmetic::kF32 && dtype == DType::kF32);
}

bool is_folded(const MatrixShape& shape, LineForm form) {
  if (form.by_codes) return false;
  return form.arithmetic == LineArithmetic::kF32 ||
         (form.arithmetic == LineArithmetic::kBf16 && vnni16::scale_is_exponent(shape));
}

// Columns in a multiplied line.
int64_t cols_per_line(DType dtype, LineForm form) {
  if (form.by_codes) return vnni16::line_cols(dtype);
  return form.arithmetic == LineArithmetic::kInt8   ? 4
         : form.arithmetic == LineArithmetic::kBf16 ? 2
                                                    : 1;
}

int64_t columns_read(const MatrixShape& shape, LineForm form) {
  if (!form.by_codes || form.arithmetic == LineArithmetic::kInt8)
    return read_cols(form.arithmetic, shape.k);
  const int64_t line = vnni16::line_cols(shape.key.dtype);
  return (shape.k + line - 1) / line * line;
}

}  // namespace

int64_t unit_cols(const MatrixShape& shape, LineForm form, int64_t x_group_cols) {
  const int64_t longest = max_stretch(form.arithmetic);
  if (form.by_codes && !shape.key.quantized()) return std::min(columns_read(shape, form), longest);
  const bool one = !shape.key.quantized() || vnni16::num_groups(shape) <= 1;
  // Sums of 255 · 32,767 times 256 columns fit into i32.
  if (form.arithmetic == LineArithmetic::kInt16)
    return one ? longest : std::gcd(longest, vnni16::group_cols(shape));
  // Integers fall through: both ways share one set of activation sums.
  if (form.by_codes && form.arithmetic != LineArithmetic::kInt8) {
    if (one) return x_group_cols > 0 ? x_group_cols : columns_read(shape, form);
    const int64_t cols = vnni16::group_cols(shape);
    return x_group_cols > 0 ? std::gcd(cols, x_group_cols) : cols;
  }
  form.by_codes = false;
  int64_t cols = is_direct(shape.key.dtype, form) ? read_cols(form.arithmetic, shape.k) : longest;
  // Units end at group boundaries. Use the longest length that divides all of them.
  if (!one && !is_folded(shape, form)) cols = std::gcd(longest, vnni16::group_cols(shape));
  return x_group_cols > 0 ? std::gcd(std::min(cols, longest), x_group_cols) : cols;
}

LinePanels::LinePanels(const KernelWeights& weights, LineForm form, int64_t x_group_cols,
                       const LineDecoders& decoders, void (*keep_awake)())
    : weights_(weights),
      decoders_(decoders),
      decode_(decoder_of(decoders, form.arithmetic, weights.shape.key.dtype)),
      keep_awake_(keep_awake),
      form_(form),
      num_panels_(vnni16::num_panels(weights.shape)),
      panel_bytes_(vnni16::panel_bytes(weights.shape)),
      num_groups_(weights.shape.key.quantized() ? vnni16::num_groups(weights.shape) : 1),
      group_cols_(weights.shape.key.quantized() ? vnni16::group_cols(weights.shape)
                                                : weights.shape.k),
      x_group_cols_(x_group_cols),
      scale_lanes_(vnni16::scale_lanes(weights.shape)),
      cols_per_line_(cols_per_line(weights.shape.key.dtype, form)),
      read_cols_(columns_read(weights.shape, form)),
      unit_cols_(cpu::unit_cols(weights.shape, form, x_group_cols)),
      direct_(is_direct(weights.shape.key.dtype, form)),
      exponents_(vnni16::scale_is_exponent(weights.shape)),
      folded_(is_folded(weights.shape, form)),
      whole_groups_(form.arithmetic == LineArithmetic::kBf16 && group_cols_ % 16 == 0 &&
                    unit_cols_ % group_cols_ == 0),
      by_group_(form.arithmetic != LineArithmetic::kInt8 &&
                (folded_ || !weights.shape.key.symmetric)) {
  cut();
}

// Whole units of the stretch that begins at `column`; 0: less than one unit remains.
int64_t LinePanels::units_from(int64_t column) const {
  // Units behind the last column hold only padding.
  int64_t units = std::min((read_cols_ - column) / unit_cols_,
                           (weights_.shape.k - column + unit_cols_ - 1) / unit_cols_);
  const int64_t most = form_.by_codes ? kMaxUnits : max_stretch(form_.arithmetic) / unit_cols_;
  units = std::min(units, std::max<int64_t>(1, most));
  // An activation scale that covers several units ends a stretch at its group's end.
  if (x_group_cols_ > unit_cols_)
    units = std::min(units, (x_group_cols_ - column % x_group_cols_) / unit_cols_);
  return units;
}

void LinePanels::cut() {
  const int64_t code_cols = vnni16::line_cols(weights_.shape.key.dtype);
  for (int64_t column = 0; column < weights_.shape.k; column += unit_cols_)
    unit_groups_.push_back(group_of(column));
  for (int64_t column = 0; column < weights_.shape.k;) {
    const int64_t units = units_from(column);
    const int64_t cols = units > 0 ? unit_cols_ : read_cols_ - column;
    Stretch s;
    s.first_column = column;
    s.first_line = column / cols_per_line_;
    s.unit_lines = cols / cols_per_line_;
    s.units = static_cast<int>(std::max<int64_t>(1, units));
    s.unit = column / unit_cols_;
    s.x_group = x_group_cols_ > 0 ? column / x_group_cols_ : 0;
    s.first_piece = pieces_.size();
    const int64_t last = column + s.units * cols;
    for (int64_t first = column; !direct_ && first < last;) {
      Piece piece;
      piece.group = group_of(first);
      int64_t end = last;
      if (by_group_ && !whole_groups_ && piece.group < num_groups_ - 1)
        end = std::min(last, (piece.group + 1) * group_cols_);
      // Keep pieces short, so that keep_awake runs often enough in between.
      int64_t most = kMaxCodeLines * code_cols;
      if (by_group_ && whole_groups_) most = std::max(most / group_cols_, int64_t{1}) * group_cols_;
      end = std::min(end, first + most);
      piece.code_at = first / code_cols * kLineBytes;
      piece.code_lines = (end - first + code_cols - 1) / code_cols;
      piece.group_lines = whole_groups_ ? group_cols_ / code_cols : 0;
      piece.to = (first - column) / cols_per_line_ * kLineBytes;
      piece.lines = (end - first) / cols_per_line_;
      pieces_.push_back(piece);
      first = end;
    }
    s.past_piece = pieces_.size();
    stretches_.push_back(s);
    column = last;
  }
}

const std::byte* LinePanels::lines(int64_t expert, int64_t panel, const Stretch& s,
                                   std::byte* scratch) const {
  if (direct_) return codes(expert, panel) + s.first_line * kLineBytes;
  for (size_t i = s.first_piece; i < s.past_piece; ++i) {
    decode(expert, panel, pieces_[i], scratch);
    if (keep_awake_ != nullptr) keep_awake_();
  }
  return scratch;
}

void LinePanels::decode(int64_t expert, int64_t panel, const Piece& piece,
                        std::byte* scratch) const {
  const MatrixShape& shape = weights_.shape;
  const int64_t index = panel * num_groups_ + piece.group;
  const std::byte* const base = weights_.expert(expert);
  LineCodes c;
  c.codes = codes(expert, panel) + piece.code_at;
  c.lines = piece.code_lines;
  c.to = scratch + piece.to;
  c.group_lines = piece.group_lines;
  if (!shape.key.symmetric)
    c.zero =
        reinterpret_cast<const int8_t*>(base + weights_.sections.zero_points) + index * kLineRows;
  if (exponents_) {
    c.exponent_lanes = static_cast<int>(scale_lanes_);
    c.exponent =
        reinterpret_cast<const uint8_t*>(base + weights_.sections.scales) + index * scale_lanes_;
  }
  alignas(64) float scales[kLineRows];
  if (form_.arithmetic == LineArithmetic::kF32 && !exponents_) {
    scales_of(expert, panel, piece.group, scales);
    c.scale = scales;
  }
  decode_(c);
}

void LinePanels::scales_of(int64_t expert, int64_t panel, int64_t group, float* scratch) const {
  const std::byte* const section = weights_.expert(expert) + weights_.sections.scales;
  const int64_t at = (panel * num_groups_ + group) * scale_lanes_;
  if (exponents_) {
    std::array<uint8_t, kLineRows> lanes;
    const auto* exponents = reinterpret_cast<const uint8_t*>(section) + at;
    if (scale_lanes_ == 1) {
      lanes.fill(*exponents);
      exponents = lanes.data();
    }
    return decoders_.powers_of_two(exponents, kLineRows, fp4_counts_twice(), scratch);
  }
  const float* const scales = reinterpret_cast<const float*>(section) + at;
  if (scale_lanes_ == 1)
    std::fill_n(scratch, kLineRows, *scales);
  else
    std::memcpy(scratch, scales, kLineRows * sizeof(float));
}

const float* LinePanels::unit_scales(int64_t expert, int64_t panel, const Stretch& s,
                                     float* scratch) const {
  if (folded_ || num_groups_ == 1) return nullptr;
  const int64_t* const groups = unit_groups_.data() + s.unit;
  if (unit_cols_ == group_cols_ && scale_lanes_ == kLineRows && !exponents_) {
    return reinterpret_cast<const float*>(weights_.expert(expert) + weights_.sections.scales) +
           (panel * num_groups_ + groups[0]) * kLineRows;
  }
  if (unit_cols_ == group_cols_ && scale_lanes_ == kLineRows) {
    const std::byte* const exponents = weights_.expert(expert) + weights_.sections.scales +
                                       (panel * num_groups_ + groups[0]) * kLineRows;
    decoders_.powers_of_two(reinterpret_cast<const uint8_t*>(exponents), s.units * kLineRows,
                            fp4_counts_twice(), scratch);
    return scratch;
  }
  for (int u = 0; u < s.units; ++u) scales_of(expert, panel, groups[u], scratch + u * kLineRows);
  return scratch;
}

void LinePanels::prefetch_scales(int64_t expert, int64_t panel, const Stretch& s) const {
  if (folded_ || num_groups_ == 1) return;
  const int64_t* const groups = unit_groups_.data() + s.unit;
  const int64_t bytes = scale_lanes_ * (exponents_ ? 1 : static_cast<int64_t>(sizeof(float)));
  const std::byte* const panel_scales =
      weights_.expert(expert) + weights_.sections.scales + panel * num_groups_ * bytes;
  const std::byte* const past = panel_scales + (groups[s.units - 1] + 1) * bytes;
  for (const std::byte* at = panel_scales + groups[0] * bytes; at < past; at += kLineBytes)
    __builtin_prefetch(at, 0, 2);
}

const int8_t* LinePanels::unit_zeros(int64_t expert, int64_t panel, const Stretch& s,
                                     int8_t* scratch) const {
  if (weights_.shape.key.symmetric) return nullptr;
  if (form_.arithmetic != LineArithmetic::kInt8 && !form_.by_codes) return nullptr;
  const int64_t* const groups = unit_groups_.data() + s.unit;
  const std::byte* const zeros =
      weights_.expert(expert) + weights_.sections.zero_points + panel * num_groups_ * kLineRows;
  if (unit_cols_ == group_cols_)
    return reinterpret_cast<const int8_t*>(zeros) + groups[0] * kLineRows;
  for (int u = 0; u < s.units; ++u)
    std::memcpy(scratch + u * kLineRows, zeros + groups[u] * kLineRows, kLineRows);
  return scratch;
}

const float* LinePanels::row_scales(int64_t expert, int64_t panel, float* scratch) const {
  const bool halves = fp4_counts_twice() && !exponents_;
  if (folded_ || !weights_.shape.key.quantized() || (num_groups_ > 1 && !halves)) return nullptr;
  if (num_groups_ > 1)
    std::fill_n(scratch, kLineRows, 1.0f);
  else
    scales_of(expert, panel, 0, scratch);
  if (halves) {
    for (int n = 0; n < kLineRows; ++n) scratch[n] *= 0.5f;
  }
  return scratch;
}

const float* LinePanels::bias(int64_t expert, int64_t panel) const {
  if (!weights_.shape.bias) return nullptr;
  return reinterpret_cast<const float*>(weights_.expert(expert) + weights_.sections.bias) +
         panel * kLineRows;
}

}  // namespace moracle::cpu
