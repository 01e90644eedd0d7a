#include "kernels/cpu/gemm/macro_kernel.h"

#include <algorithm>
#include <bit>

#include "base/text.h"

namespace moracle::cpu {
namespace {

int64_t column_bytes(LineArithmetic arithmetic) {
  return arithmetic == LineArithmetic::kInt8 ? 1 : arithmetic == LineArithmetic::kF32 ? 4 : 2;
}

int lines_ahead(const LineKernels& kernels, LineForm form, const QuantKey& key) {
  if (!key.quantized()) return kernels.lines_ahead_16;
  // Floats times codes wait for their decoding, not for memory, and have no instructions to spare.
  return form.by_codes && form.arithmetic == LineArithmetic::kF32 ? 0 : kernels.lines_ahead;
}

// Only integers and bf16 may be multiplied by codes in blocks of any number of rows.
int block_rows(const LineKernels& kernels, LineForm form, const QuantKey& key) {
  const bool all = form.arithmetic == LineArithmetic::kInt16 ||
                   (kernels.codes_for_all_rows && form.arithmetic != LineArithmetic::kF32);
  return form.by_codes && key.quantized() && !all ? kernels.code_block : kernels.row_block;
}

// Maximum rows of a pass that prefetches scales. Exponents become floats before a stretch begins,
// which waits for them. Kernels read f32 scales as they go, which costs time only with few rows.
int scale_rows(const MatrixShape& shape) {
  constexpr int kF32Rows = 2;
  return vnni16::scale_is_exponent(shape) ? kPassRows : kF32Rows;
}

}  // namespace

int64_t x_group_cols(const Scheme& scheme) {
  const auto& key = scheme.activation;
  const bool grouped =
      key && !vnni16::scale_is_exponent({0, 0, *key}) && key->group.cols != GroupShape::kAll;
  return grouped ? key->group.cols : 0;
}

std::string line_kernel_name(DType codes, LineForm form, bool two_parts,
                             const LineKernels& kernels) {
  const auto at = static_cast<size_t>(form.arithmetic);
  const char* instruction = kernels.instructions[at];
  if (form.by_codes && kernels.code_instructions[at] != nullptr)
    instruction = kernels.code_instructions[at];
  const char* const products[] = {
      form.in_parts ? "floats in three i8 parts, exact sums" : "i8 x i8, exact sums",
      two_parts ? "products of two bf16 parts, f32 sums" : "bf16 products, f32 sums",
      "f32 products and sums", "floats as i16, exact sums"};
  return str(moracle::name(codes), form.by_codes ? " codes, " : " lines, ", products[at], ", ",
             instruction == nullptr ? "none" : instruction);
}

LinePass::Kernel LinePass::kernel_of(const LineKernels& kernels, LineForm form, DType codes) {
  const bool int8 = form.arithmetic == LineArithmetic::kInt8;
  if (!form.by_codes)
    return int8                                       ? kernels.int8
           : form.arithmetic == LineArithmetic::kBf16 ? kernels.bf16
                                                      : kernels.f32;
  if (kernels.codes == nullptr) return nullptr;
  if (form.arithmetic == LineArithmetic::kBf16) {
    return codes == DType::kI4       ? kernels.bf16_by_i4
           : codes == DType::kF4E2M1 ? kernels.bf16_by_e2m1
           : codes == DType::kF8E4M3 ? kernels.bf16_by_e4m3
                                     : nullptr;
  }
  if (form.arithmetic == LineArithmetic::kInt16) {
    return codes == DType::kI4       ? kernels.codes->int16_by_i4
           : codes == DType::kI8     ? kernels.codes->int16_by_i8
           : codes == DType::kF4E2M1 ? kernels.codes->int16_by_e2m1
                                     : nullptr;
  }
  switch (codes) {
    case DType::kI4:
      return int8 ? kernels.codes->int8_by_i4 : kernels.codes->f32_by_i4;
    case DType::kF4E2M1:
      return int8 ? kernels.codes->int8_by_e2m1 : kernels.codes->f32_by_e2m1;
    case DType::kI8:
      return int8 ? nullptr : kernels.codes->f32_by_i8;
    case DType::kF8E4M3:
      return int8 ? nullptr : kernels.codes->f32_by_e4m3;
    case DType::kBF16:
      return int8 ? nullptr : kernels.codes->f32_by_bf16;
    case DType::kF16:
      return int8 ? nullptr : kernels.codes->f32_by_f16;
    default:
      return nullptr;
  }
}

bool LinePass::serves(const MatrixShape& shape, const Scheme& scheme, LineForm form,
                      const LineKernels& kernels) {
  if (kernel_of(kernels, form, shape.key.dtype) == nullptr) return false;
  const bool zeros = shape.key.quantized() && !shape.key.symmetric;
  if (form.by_codes && form.arithmetic == LineArithmetic::kBf16 && zeros) return false;
  // Units must consist of whole lines.
  return !form.by_codes ||
         unit_cols(shape, form, x_group_cols(scheme)) % vnni16::line_cols(shape.key.dtype) == 0;
}

LinePass::LinePass(const KernelWeights& weights, LineForm form, const LineKernels& kernels)
    : weights_(weights),
      form_(form),
      kernels_(kernels),
      kernel_(kernel_of(kernels, form, weights.shape.key.dtype)),
      row_block_(block_rows(kernels, form, weights.shape.key)),
      lines_ahead_(lines_ahead(kernels, form, weights.shape.key)),
      panels_(weights, form, x_group_cols(weights.scheme), *kernels.decoders, kernels.keep_awake),
      x_group_is_unit_(x_group_cols(weights.scheme) == panels_.unit_cols()),
      scale_rows_(scale_rows(weights.shape)) {}

void LinePass::prefetch_ahead(const PanelPair& pair, const Pass& pass, int64_t first_line,
                              LineBlock& block) const {
  const int64_t at = first_line + lines_ahead_, left = panels_.panel_lines() - at;
  block.prefetch_turn = left > 0 ? left : INT64_MAX;
  for (int p = 0; p < block.panels; ++p) {
    const std::byte* const own = panels_.codes(pair.expert, pair.panel + p * pair.distance);
    const std::byte* const end = own + panels_.panel_lines() * kLineBytes;
    const std::byte* const next =
        pass.prefetch ? panels_.codes(pass.next.expert, pass.next.panel + p * pass.next.distance)
                      : end;
    block.prefetch_jump[p] = next - end;
    block.prefetch[p] = left > 0 ? own + at * kLineBytes : next - left * kLineBytes;
  }
}

void LinePass::multiply(const PanelPair& pair, const Pass& pass, PassScratch& scratch) const {
  const int count = pair.panels();
  const int rows = pass.count * parts();
  const int blocks = (rows + row_block_ - 1) / row_block_;
  const bool ahead = blocks == 1 && lines_ahead_ > 0 && rows <= kernels_.rows_ahead;
  // Each block decodes the codes once, so blocks are even, with no short one at the end.
  const int step = form_.by_codes ? (rows + blocks - 1) / blocks : row_block_;
  // Every block of rows prefetches its share of the next codes. So prefetches overlap products, not
  // reads of codes.
  const auto ratio = static_cast<int>(panels_.lines_per_code_line());
  const int sharing = static_cast<int>(std::bit_floor(static_cast<unsigned>(blocks)));
  const int every = std::min(16, sharing * ratio), share_blocks = every / ratio;
  LineBlock block;
  block.panels = count;
  block.most_rows = std::min(row_block_, rows);
  block.x_stride = form_.in_parts ? pass.x.part_stride : pass.x.stride;
  block.x_rest = pass.x.rest;
  for (const LinePanels::Stretch& s : panels_.stretches()) {
    block.units = s.units;
    block.unit_lines = s.unit_lines;
    block.overwrite = s.first_column == 0;
    const int64_t num_lines = block.units * block.unit_lines;
    const std::byte* prefetch[2] = {};
    for (int p = 0; p < count; ++p) {
      const int64_t panel = pair.panel + p * pair.distance;
      if (pass.prefetch) {
        const int64_t next = pass.next.panel + p * pass.next.distance;
        prefetch[p] = panels_.codes(pass.next.expert, next);
        if (pass.count <= scale_rows_) panels_.prefetch_scales(pass.next.expert, next, s);
      }
      block.lines[p] = panels_.lines(pair.expert, panel, s, scratch.lines[p]);
      block.w_scale[p] = panels_.unit_scales(pair.expert, panel, s, scratch.unit_scales[p]);
      block.w_zero[p] = panels_.unit_zeros(pair.expert, panel, s, scratch.unit_zeros[p]);
    }
    if (ahead) prefetch_ahead(pair, pass, s.first_line / ratio, block);
    for (int row = 0, b = 0; row < rows; row += step, ++b) {
      const int64_t at = pass.first * parts() + row;
      block.rows = std::min(step, rows - row);
      block.x =
          pass.x.values + at * block.x_stride + s.first_column * column_bytes(form_.arithmetic);
      block.prefetch_every = ahead || (pass.prefetch && b < share_blocks) ? every : 0;
      const int64_t share = (s.first_line / ratio + b * (num_lines / every)) * kLineBytes;
      for (int p = 0; p < count; ++p) {
        block.sum[p] = scratch.sums[p] + row * kLineRows;
        if (!ahead && block.prefetch_every > 0) block.prefetch[p] = prefetch[p] + share;
      }
      const bool int16 = form_.arithmetic == LineArithmetic::kInt16;
      if (int16 || form_.arithmetic == LineArithmetic::kInt8) {
        block.x_sum = pass.x.sums + at * pass.x.num_sums + s.unit;
        block.x_sum_stride = pass.x.num_sums;
      }
      if (form_.in_parts || int16) {
        block.x_scale = pass.x.unit_scales + at * pass.x.num_sums + s.unit;
        block.x_scale_stride = pass.x.num_sums;
        block.x_scale_unit = 1;
      } else if (pass.x.num_scales > 1) {
        block.x_scale = pass.x.scales + at * pass.x.num_scales + s.x_group;
        block.x_scale_stride = pass.x.num_scales;
        block.x_scale_unit = x_group_is_unit_ ? 1 : 0;
      }
      kernel_(block);
    }
  }
  if (!form_.in_parts) return;
  for (int p = 0; p < count; ++p) add_parts(pass.count, scratch.sums[p]);
}

// The sums of a row are those of its parts. The smallest part comes first.
void LinePass::add_parts(int rows, float* sums) const {
  static_assert(kFloatParts == 3);
  for (int r = 0; r < rows; ++r) {
    const float* const part = sums + r * kFloatParts * kLineRows;
    for (int n = 0; n < kLineRows; ++n)
      sums[r * kLineRows + n] = part[2 * kLineRows + n] + part[kLineRows + n] + part[n];
  }
}

StoreArgs LinePass::result(const PanelPair& pair, int p, const Pass& pass,
                           PassScratch& scratch) const {
  const int64_t panel = pair.panel + p * pair.distance;
  StoreArgs f;
  f.sum = scratch.sums[p];
  f.rows = pass.count;
  f.columns = static_cast<int>(std::min<int64_t>(kLineRows, weights_.shape.n - panel * kLineRows));
  if (pass.x.num_scales == 1) {
    f.x_scale = pass.x.scales + pass.first;
    f.x_scale_stride = 1;
  }
  f.w_scale = panels_.row_scales(pair.expert, panel, scratch.scales[p]);
  f.bias = panels_.bias(pair.expert, panel);
  return f;
}

}  // namespace moracle::cpu
