#include "kernels/cpu/gemm/weight_panels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/scalar.h"
#include "kernels/cpu/gemm/pack_rows.h"
#include "kernels/cpu/simd/vector_ops.h"
#include "quant/code_set.h"

namespace moracle::cpu {
namespace {

bool is_direct(DType dtype, DotForm form) {
  return form.by_codes || (form.x == Operand::kInt8 && dtype == DType::kI8) ||
         (form.x == Operand::kBf16 && dtype == DType::kBF16) ||
         (form.x == Operand::kF32 && dtype == DType::kF32);
}

bool is_folded(const MatrixShape& shape, DotForm form) {
  if (form.by_codes) return false;
  return form.x == Operand::kF32 || (form.x == Operand::kBf16 && vnni16::scale_is_exponent(shape));
}

// Columns in a multiplied row block.
int64_t cols_per_block(DType dtype, DotForm form) {
  if (form.by_codes) return vnni16::block_cols(dtype);
  return form.x == Operand::kInt8 ? 4 : form.x == Operand::kBf16 ? 2 : 1;
}

int64_t columns_read(const MatrixShape& shape, DotForm form) {
  if (!form.by_codes || form.x == Operand::kInt8) return read_cols(form.x, shape.k);
  const int64_t row_block = vnni16::block_cols(shape.key.dtype);
  return (shape.k + row_block - 1) / row_block * row_block;
}

}  // namespace

int64_t segment_cols(const MatrixShape& shape, DotForm form, int64_t x_group_cols) {
  const int64_t longest = max_k_block(form.x);
  if (form.by_codes && !shape.key.quantized()) return std::min(columns_read(shape, form), longest);
  const bool one = !shape.key.quantized() || vnni16::num_groups(shape) <= 1;
  // Sums of 255 · 32,767 times 256 columns fit into i32.
  if (form.x == Operand::kInt16)
    return one ? longest : std::gcd(longest, vnni16::group_cols(shape));
  // Integers fall through: both forms share one set of activation sums.
  if (form.by_codes && form.x != Operand::kInt8) {
    if (one) return x_group_cols > 0 ? x_group_cols : columns_read(shape, form);
    const int64_t cols = vnni16::group_cols(shape);
    return x_group_cols > 0 ? std::gcd(cols, x_group_cols) : cols;
  }
  form.by_codes = false;
  int64_t cols = is_direct(shape.key.dtype, form) ? read_cols(form.x, shape.k) : longest;
  // Segments end at group boundaries. Use the longest length that divides all of them.
  if (!one && !is_folded(shape, form)) cols = std::gcd(longest, vnni16::group_cols(shape));
  return x_group_cols > 0 ? std::gcd(std::min(cols, longest), x_group_cols) : cols;
}

WeightPanels::WeightPanels(const KernelWeights& weights, DotForm form, int64_t x_group_cols,
                           const UkernelSet& kernels)
    : weights_(weights),
      kernels_(kernels),
      unpack_(kernels.unpack(weights.shape.key.dtype, form.x)),
      form_(form),
      num_panels_(vnni16::num_panels(weights.shape)),
      panel_bytes_(vnni16::panel_bytes(weights.shape)),
      num_groups_(weights.shape.key.quantized() ? vnni16::num_groups(weights.shape) : 1),
      group_cols_(weights.shape.key.quantized() ? vnni16::group_cols(weights.shape)
                                                : weights.shape.k),
      x_group_cols_(x_group_cols),
      scale_lanes_(vnni16::scale_lanes(weights.shape)),
      scale_bytes_(vnni16::scale_bytes(weights.shape)),
      minimum_bytes_(vnni16::minimum_bytes(weights.shape)),
      cols_per_block_(cols_per_block(weights.shape.key.dtype, form)),
      read_cols_(columns_read(weights.shape, form)),
      segment_cols_(cpu::segment_cols(weights.shape, form, x_group_cols)),
      unit_(vnni16::unit_of(weights.shape)),
      set_(weights.shape.key.codes != CodeSet::kAny),
      direct_(is_direct(weights.shape.key.dtype, form)),
      exponents_(vnni16::scale_is_exponent(weights.shape)),
      steps_(vnni16::scale_is_step(weights.shape)),
      floats_(weights.shape.key.scale_dtype == DType::kF32),
      folded_(is_folded(weights.shape, form)),
      whole_groups_(form.x == Operand::kBf16 && group_cols_ % 16 == 0 &&
                    segment_cols_ % group_cols_ == 0),
      by_group_(form.x != Operand::kInt8 && (folded_ || panels_have_zero_points(weights.shape))) {
  cut();
}

// Whole segments of the k-block that begins at `column`; 0: less than one segment remains.
int64_t WeightPanels::segments_from(int64_t column) const {
  // Segments behind the last column hold only padding.
  int64_t segments = std::min((read_cols_ - column) / segment_cols_,
                              (weights_.shape.k - column + segment_cols_ - 1) / segment_cols_);
  int64_t most = form_.by_codes ? kMaxSegments : max_k_block(form_.x) / segment_cols_;
  // Codes of a code set are unpacked into scratch.
  if (set_) most = std::min(most, kScratchBytes / kPanelRows / segment_cols_);
  segments = std::min(segments, std::max<int64_t>(1, most));
  // An activation scale that covers several segments ends a k-block at its group's end.
  if (x_group_cols_ > segment_cols_)
    segments = std::min(segments, (x_group_cols_ - column % x_group_cols_) / segment_cols_);
  return segments;
}

void WeightPanels::cut() {
  const int64_t code_cols = vnni16::block_cols(weights_.shape.key.dtype);
  for (int64_t column = 0; column < weights_.shape.k; column += segment_cols_)
    segment_groups_.push_back(group_of(column));
  for (int64_t column = 0; column < weights_.shape.k;) {
    const int64_t segments = segments_from(column);
    const int64_t cols = segments > 0 ? segment_cols_ : read_cols_ - column;
    KBlock s;
    s.first_column = column;
    s.first_block = column / cols_per_block_;
    s.first_code_block = column / unit_.cols * unit_.blocks;
    s.segment_blocks = cols / cols_per_block_;
    s.segments = static_cast<int>(std::max<int64_t>(1, segments));
    s.segment = column / segment_cols_;
    s.x_group = x_group_cols_ > 0 ? column / x_group_cols_ : 0;
    s.first_call = unpack_calls_.size();
    const int64_t last = column + s.segments * cols;
    for (int64_t first = column; !direct_ && first < last;) {
      UnpackCall call;
      call.group = group_of(first);
      int64_t end = last;
      if (by_group_ && !whole_groups_ && call.group < num_groups_ - 1)
        end = std::min(last, (call.group + 1) * group_cols_);
      // Keep calls short, so that keep_awake runs often enough in between.
      int64_t most = kMaxCodeBlocks * code_cols;
      if (by_group_ && whole_groups_) most = std::max(most / group_cols_, int64_t{1}) * group_cols_;
      end = std::min(end, first + most);
      call.code_at = first / code_cols * kRowBlockBytes;
      call.code_blocks = (end - first + code_cols - 1) / code_cols;
      call.group_blocks = whole_groups_ ? group_cols_ / code_cols : 0;
      call.to = (first - column) / cols_per_block_ * kRowBlockBytes;
      unpack_calls_.push_back(call);
      first = end;
    }
    s.past_call = unpack_calls_.size();
    k_blocks_.push_back(s);
    column = last;
  }
}

const std::byte* WeightPanels::row_blocks(int64_t expert, int64_t panel, const KBlock& s,
                                          std::byte* scratch, std::byte* unpacked) const {
  const std::byte* from = codes(expert, panel);
  int64_t origin = 0;  // the byte of the row's int8 codes that `from` holds
  if (set_) {
    std::byte* const to = direct_ ? scratch : unpacked;
    unpack(expert, panel, s, to);
    if (direct_) return to;
    from = to;
    origin = s.first_column / vnni16::block_cols(DType::kI8) * kRowBlockBytes;
  }
  if (direct_) return from + s.first_block * kRowBlockBytes;
  for (size_t i = s.first_call; i < s.past_call; ++i) {
    const UnpackCall& call = unpack_calls_[i];
    unpack(expert, panel, call, from + (call.code_at - origin), scratch);
    if (kernels_.keep_awake != nullptr) kernels_.keep_awake();
  }
  return scratch;
}

void WeightPanels::unpack(int64_t expert, int64_t panel, const KBlock& s, std::byte* to) const {
  const int64_t cols = s.segments * s.segment_blocks * cols_per_block_;
  const int64_t left = vnni16::padded_cols(weights_.shape) - s.first_column;
  UnpackArgs args;
  args.from = codes(expert, panel) + s.first_code_block * kRowBlockBytes;
  args.units = (std::min(cols, left) + unit_.cols - 1) / unit_.cols;
  args.set = weights_.shape.key.codes;
  if (has_code_book(args.set)) args.code_book = code_book(args.set).data();
  args.to = to;
  vector_ops().unpack_codes(args);
  if (kernels_.keep_awake != nullptr) kernels_.keep_awake();
}

void WeightPanels::unpack(int64_t expert, int64_t panel, const UnpackCall& call,
                          const std::byte* codes, std::byte* scratch) const {
  const MatrixShape& shape = weights_.shape;
  const int64_t index = panel * num_groups_ + call.group;
  const std::byte* const base = weights_.expert(expert);
  UnpackBlocksArgs c;
  c.codes = codes;
  c.blocks = call.code_blocks;
  c.to = scratch + call.to;
  c.group_blocks = call.group_blocks;
  if (panels_have_zero_points(shape))
    c.zero =
        reinterpret_cast<const int8_t*>(base + weights_.sections.zero_points) + index * kPanelRows;
  if (exponents_) {
    c.exponent_lanes = static_cast<int>(scale_lanes_);
    c.exponent =
        reinterpret_cast<const uint8_t*>(scales(expert, panel)) + call.group * scale_lanes_;
  }
  alignas(64) float scales[kPanelRows];
  if (form_.x == Operand::kF32 && !exponents_) {
    scales_of(expert, panel, call.group, scales);
    c.scale = scales;
  }
  unpack_->fn(c);
}

// Every kFactorCols columns have their own factor.
void WeightPanels::read_steps(const std::byte* panel, int64_t group, int64_t count,
                              const float* plus, float* to) const {
  const int64_t per_factor = kFactorCols / group_cols_;
  const auto* const factors = reinterpret_cast<const uint16_t*>(panel);
  const auto* const steps =
      reinterpret_cast<const int8_t*>(panel + vnni16::factor_bytes(weights_.shape));
  for (const int64_t past = group + count; group < past;) {
    StepArgs args;
    args.steps = steps + group * kPanelRows;
    args.factor = factors + group / per_factor * kPanelRows;
    args.unit = factor_unit(weights_.shape.key.codes);
    args.groups = std::min(past - group, per_factor - group % per_factor);
    args.plus = plus;
    args.times = kStepZeroPoint;
    args.to = to;
    vector_ops().scale_steps(args);
    if (plus != nullptr) plus += args.groups * kPanelRows;
    to += args.groups * kPanelRows;
    group += args.groups;
  }
}

void WeightPanels::read_scales(int64_t expert, int64_t panel, int64_t group, int64_t count,
                               float* to) const {
  const std::byte* const all = scales(expert, panel);
  const int64_t first = group * kPanelRows, numbers = count * kPanelRows;
  if (steps_) return read_steps(all, group, count, nullptr, to);
  if (exponents_)
    return vector_ops().powers_of_two(reinterpret_cast<const uint8_t*>(all) + first, numbers,
                                      fp4_counts_twice(), to);
  if (floats_)
    std::memcpy(to, reinterpret_cast<const float*>(all) + first, numbers * sizeof(float));
  else
    vector_ops().widen_scales(reinterpret_cast<const uint16_t*>(all) + first, count, to);
}

void WeightPanels::scales_of(int64_t expert, int64_t panel, int64_t group, float* scratch) const {
  if (scale_lanes_ == kPanelRows) return read_scales(expert, panel, group, 1, scratch);
  const std::byte* const all = scales(expert, panel);
  if (exponents_) {
    std::array<uint8_t, kPanelRows> lanes;
    lanes.fill(reinterpret_cast<const uint8_t*>(all)[group]);
    return vector_ops().powers_of_two(lanes.data(), kPanelRows, fp4_counts_twice(), scratch);
  }
  std::fill_n(scratch, kPanelRows,
              floats_ ? reinterpret_cast<const float*>(all)[group]
                      : f16_to_float(reinterpret_cast<const uint16_t*>(all)[group]));
}

const float* WeightPanels::segment_scales(int64_t expert, int64_t panel, const KBlock& s,
                                          float* scratch) const {
  if (folded_ || num_groups_ == 1) return nullptr;
  const int64_t* const groups = segment_groups_.data() + s.segment;
  if (segment_cols_ == group_cols_ && scale_lanes_ == kPanelRows) {
    if (floats_)
      return reinterpret_cast<const float*>(scales(expert, panel)) + groups[0] * kPanelRows;
    read_scales(expert, panel, groups[0], s.segments, scratch);
    return scratch;
  }
  for (int u = 0; u < s.segments; ++u)
    scales_of(expert, panel, groups[u], scratch + u * kPanelRows);
  return scratch;
}

void WeightPanels::prefetch_scales(int64_t expert, int64_t panel, const KBlock& s) const {
  if (folded_ || num_groups_ == 1) return;
  const int64_t* const groups = segment_groups_.data() + s.segment;
  // Steps (integer scales) have the size of exponents; their factors are few.
  const int64_t bytes = scale_lanes_ * bits(weights_.shape.key.scale_dtype) / 8;
  const std::byte* const panel_scales =
      scales(expert, panel) + (steps_ ? vnni16::factor_bytes(weights_.shape) : 0);
  const std::byte* const past = panel_scales + (groups[s.segments - 1] + 1) * bytes;
  for (const std::byte* at = panel_scales + groups[0] * bytes; at < past; at += kRowBlockBytes)
    __builtin_prefetch(at, 0, 2);
}

const int8_t* WeightPanels::segment_zeros(int64_t expert, int64_t panel, const KBlock& s,
                                          int8_t* scratch) const {
  if (!panels_have_zero_points(weights_.shape)) return nullptr;
  if (form_.x != Operand::kInt8 && !form_.by_codes) return nullptr;
  const int64_t* const groups = segment_groups_.data() + s.segment;
  const std::byte* const zeros =
      weights_.expert(expert) + weights_.sections.zero_points + panel * num_groups_ * kPanelRows;
  if (segment_cols_ == group_cols_)
    return reinterpret_cast<const int8_t*>(zeros) + groups[0] * kPanelRows;
  for (int u = 0; u < s.segments; ++u)
    std::memcpy(scratch + u * kPanelRows, zeros + groups[u] * kPanelRows, kPanelRows);
  return scratch;
}

const float* WeightPanels::row_scales(int64_t expert, int64_t panel, float* scratch) const {
  const bool halves = fp4_counts_twice() && !exponents_;
  if (folded_ || !weights_.shape.key.quantized() || (num_groups_ > 1 && !halves)) return nullptr;
  if (num_groups_ > 1)
    std::fill_n(scratch, kPanelRows, 1.0f);
  else
    scales_of(expert, panel, 0, scratch);
  if (halves) {
    for (int n = 0; n < kPanelRows; ++n) scratch[n] *= 0.5f;
  }
  return scratch;
}

const float* WeightPanels::bias(int64_t expert, int64_t panel) const {
  if (!weights_.shape.bias) return nullptr;
  return reinterpret_cast<const float*>(weights_.expert(expert) + weights_.sections.bias) +
         panel * kPanelRows;
}

const float* WeightPanels::minimums(int64_t expert, int64_t panel, int64_t group, int64_t count,
                                    float* scratch) const {
  const std::byte* const all = minimums(expert, panel);
  if (!steps_) return reinterpret_cast<const float*>(all) + group * kPanelRows;
  const float* scales = nullptr;
  if (!weights_.shape.key.symmetric) {
    float* const own = scratch + kMinimumGroups * kPanelRows;
    read_scales(expert, panel, group, count, own);
    scales = own;
  }
  read_steps(all, group, count, scales, scratch);
  return scratch;
}

void WeightPanels::prefetch_minimums(int64_t expert, int64_t panel, const KBlock& s) const {
  if (!weights_.shape.key.minimums) return;
  const int64_t* const groups = segment_groups_.data() + s.segment;
  const int64_t bytes = kPanelRows * (steps_ ? 1 : static_cast<int64_t>(sizeof(float)));
  const std::byte* const steps =
      minimums(expert, panel) + (steps_ ? vnni16::factor_bytes(weights_.shape) : 0);
  const std::byte* const past = steps + (groups[s.segments - 1] + 1) * bytes;
  for (const std::byte* at = steps + groups[0] * bytes; at < past; at += kRowBlockBytes)
    __builtin_prefetch(at, 0, 2);
}

}  // namespace moracle::cpu
