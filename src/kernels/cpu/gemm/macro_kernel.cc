#include "kernels/cpu/gemm/macro_kernel.h"

#include <algorithm>
#include <bit>

#include "quant/code_set.h"

namespace moracle::cpu {
namespace {

int64_t column_bytes(Operand arithmetic) {
  return arithmetic == Operand::kInt8 ? 1 : arithmetic == Operand::kF32 ? 4 : 2;
}

int prefetch_distance(const UkernelSet& kernels, DotForm form, const QuantKey& key) {
  if (!key.quantized()) return kernels.prefetch_distance_16;
  // Kernels that multiply f32 by codes are limited by unpacking, not by memory, and have no
  // instructions to spare.
  return form.by_codes && form.x == Operand::kF32 ? 0 : kernels.prefetch_distance;
}

// Maximum rows of a row tile that prefetches scales. Exponents are converted to floats before a
// k-block begins, which waits for them. Kernels load f32 scales in the mainloop, which costs time
// only with few rows.
int scale_rows(const MatrixShape& shape) {
  constexpr int kF32Rows = 2;
  return vnni16::scale_is_exponent(shape) ? kTileRows : kF32Rows;
}

// Kernels for few rows multiply codes as stored, those for many rows unpack them.
const StepKernel* steps_of(const UkernelSet& kernels, DotForm form, const QuantKey& key) {
  return kernels.steps(key, form.by_codes ? kSkinnyRows : kTileRows);
}

// Groups consist of units of codes, and padding completes the last one.
bool serves_stored_scales(const MatrixShape& shape, const UkernelSet& kernels, DotForm form) {
  constexpr int64_t kPaddedCols = 64;
  return shape.key.quantized() && vnni16::num_groups(shape) > 1 &&
         vnni16::scale_lanes(shape) == kPanelRows &&
         steps_of(kernels, form, shape.key) != nullptr &&
         kPaddedCols % vnni16::group_cols(shape) == 0 &&
         vnni16::group_cols(shape) % (shape.key.codes == CodeSet::kUnsigned5 ? 32 : 16) == 0 &&
         (vnni16::scale_is_step(shape) || (shape.key.symmetric && !shape.key.minimums));
}

}  // namespace

int64_t x_group_cols(const Scheme& scheme) {
  const auto& key = scheme.activation;
  const bool grouped =
      key && !vnni16::scale_is_exponent({0, 0, *key}) && key->group.cols != GroupShape::kAll;
  return grouped ? key->group.cols : 0;
}

StoredScales stored_scales(const QuantKey& key) {
  return key.scale_dtype == DType::kI8    ? StoredScales::kSteps
         : key.scale_dtype == DType::kF16 ? StoredScales::kHalves
                                          : StoredScales::kNone;
}

const DotKernel* dot_of(const UkernelSet& kernels, DotForm form, DType codes) {
  const std::optional<DType> operand = operand_dtype(form.x);
  if (form.by_codes) return operand == codes ? nullptr : kernels.dot(form.x, codes);
  return operand ? kernels.dot(form.x, *operand) : nullptr;
}

std::string_view instruction_of(const UkernelSet& kernels, const DotForm& form,
                                const QuantKey& key) {
  if (form.by_stored_scales()) {
    const StepKernel* const steps = steps_of(kernels, form, key);
    return steps == nullptr ? "none" : steps->instruction;
  }
  const DotKernel* const dot = dot_of(kernels, form, key.dtype);
  return dot == nullptr ? "none" : dot->instruction;
}

bool MacroKernel::serves(const MatrixShape& shape, const Scheme& scheme, DotForm form,
                         const UkernelSet& kernels) {
  if (form.by_stored_scales())
    return form.scales == stored_scales(shape.key) && serves_stored_scales(shape, kernels, form);
  if (dot_of(kernels, form, shape.key.dtype) == nullptr) return false;
  const bool zeros = panels_have_zero_points(shape);
  if (form.by_codes && form.x == Operand::kBf16 && zeros) return false;
  // Segments must consist of whole row blocks.
  return !form.by_codes ||
         segment_cols(shape, form, x_group_cols(scheme)) % vnni16::block_cols(shape.key.dtype) == 0;
}

MacroKernel::MacroKernel(const KernelWeights& weights, const CpuDotForm& form,
                         const UkernelSet& kernels)
    : weights_(weights),
      planned_(form),
      form_(form.dot),
      kernels_(kernels),
      dot_(form_.by_stored_scales() ? nullptr : dot_of(kernels, form_, weights.shape.key.dtype)),
      steps_(form_.by_stored_scales() ? steps_of(kernels, form_, weights.shape.key) : nullptr),
      prefetch_distance_(prefetch_distance(kernels, form_, weights.shape.key)),
      panels_(weights, form_, x_group_cols(weights.scheme), kernels),
      x_group_is_segment_(x_group_cols(weights.scheme) == panels_.segment_cols()),
      scale_rows_(scale_rows(weights.shape)) {}

void MacroKernel::prefetch_ahead(const PanelPair& pair, const RowTile& tile, int64_t first_block,
                                 DotArgs& block) const {
  const int64_t at = first_block + prefetch_distance_, left = panels_.panel_blocks() - at;
  block.prefetch_switch = left > 0 ? left : INT64_MAX;
  for (int p = 0; p < block.panels; ++p) {
    const std::byte* const own = panels_.codes(pair.expert, pair.panel + p * pair.distance);
    const std::byte* const end = own + panels_.panel_blocks() * kRowBlockBytes;
    const std::byte* const next =
        tile.prefetch ? panels_.codes(tile.next.expert, tile.next.panel + p * tile.next.distance)
                      : end;
    block.prefetch_jump[p] = next - end;
    block.prefetch[p] = left > 0 ? own + at * kRowBlockBytes : next - left * kRowBlockBytes;
  }
}

void MacroKernel::multiply(const PanelPair& pair, const RowTile& tile, const WorkBetween& between,
                           TileScratch& scratch, TileSums& sums) const {
  if (steps_ != nullptr) return multiply_steps(pair, tile, sums);
  const int count = pair.panels();
  const int rows = tile.count * limbs();
  const int blocks = (rows + dot_->rows - 1) / dot_->rows;
  const bool ahead = blocks == 1 && prefetch_distance_ > 0 && rows <= kernels_.prefetch_rows;
  // Each block unpacks the codes once, so blocks are even, with no short one at the end.
  const int step = form_.by_codes ? (rows + blocks - 1) / blocks : dot_->rows;
  // Every block of rows prefetches its share of the next codes. So prefetches overlap products, not
  // reads of codes.
  const auto ratio = static_cast<int>(panels_.blocks_per_code_block());
  const int sharing = static_cast<int>(std::bit_floor(static_cast<unsigned>(blocks)));
  const int every = std::min(16, sharing * ratio), share_blocks = every / ratio;
  const bool works = does_work_between() && between.call != nullptr;
  const int parts = static_cast<int>(panels_.k_blocks().size()) * ((rows + step - 1) / step);
  int part = 0;
  DotArgs block;
  block.panels = count;
  block.most_rows = std::min(dot_->rows, rows);
  block.x_stride = form_.in_limbs ? tile.x.limb_stride : tile.x.stride;
  block.x_low = tile.x.rest;
  for (const WeightPanels::KBlock& s : panels_.k_blocks()) {
    block.segments = s.segments;
    block.segment_blocks = s.segment_blocks;
    block.overwrite = s.first_column == 0;
    const int64_t num_blocks = block.segments * block.segment_blocks;
    const std::byte* prefetch[2] = {};
    for (int p = 0; p < count; ++p) {
      const int64_t panel = pair.panel + p * pair.distance;
      if (tile.prefetch) {
        const int64_t next = tile.next.panel + p * tile.next.distance;
        prefetch[p] = panels_.codes(tile.next.expert, next);
        if (tile.count <= scale_rows_) {
          panels_.prefetch_scales(tile.next.expert, next, s);
          panels_.prefetch_minimums(tile.next.expert, next, s);
        }
      }
      block.w[p] = panels_.row_blocks(pair.expert, panel, s, scratch.row_blocks[p], scratch.codes);
      block.w_scale[p] = panels_.segment_scales(pair.expert, panel, s, scratch.segment_scales[p]);
      block.w_zero[p] = panels_.segment_zeros(pair.expert, panel, s, scratch.segment_zeros[p]);
    }
    if (ahead) prefetch_ahead(pair, tile, s.first_code_block, block);
    for (int row = 0, b = 0; row < rows; row += step, ++b) {
      const int64_t at = tile.first * limbs() + row;
      block.rows = std::min(step, rows - row);
      block.x = tile.x.values + at * block.x_stride + s.first_column * column_bytes(form_.x);
      block.prefetch_every = ahead || (tile.prefetch && b < share_blocks) ? every : 0;
      const int64_t share = (s.first_code_block + b * (num_blocks / every)) * kRowBlockBytes;
      for (int p = 0; p < count; ++p) {
        block.sum[p] = sums.of[p] + row * kPanelRows;
        if (!ahead && block.prefetch_every > 0) block.prefetch[p] = prefetch[p] + share;
      }
      const bool int16 = form_.x == Operand::kInt16;
      if (int16 || form_.x == Operand::kInt8) {
        block.x_sum = tile.x.sums + at * tile.x.num_sums + s.segment;
        block.x_sum_stride = tile.x.num_sums;
      }
      if (form_.in_limbs || int16) {
        block.x_scale = tile.x.segment_scales + at * tile.x.num_sums + s.segment;
        block.x_scale_stride = tile.x.num_sums;
        block.x_scale_step = 1;
      } else if (tile.x.num_scales > 1) {
        block.x_scale = tile.x.scales + at * tile.x.num_scales + s.x_group;
        block.x_scale_stride = tile.x.num_scales;
        block.x_scale_step = x_group_is_segment_ ? 1 : 0;
      }
      dot_->fn(block);
      if (works) between.call(between.work, part++, parts);
    }
  }
  for (int p = 0; form_.in_limbs && p < count; ++p) add_limbs(tile.count, sums.of[p]);
  if (tile.x.num_minimums > 0) subtract_minimums(pair, tile, scratch, sums);
}

void MacroKernel::multiply_steps(const PanelPair& pair, const RowTile& tile, TileSums& sums) const {
  StepDotArgs block;
  block.panels = pair.panels();
  block.rows = tile.count;
  block.limbs = limbs();
  block.x_stride = form_.in_limbs ? tile.x.limb_stride : tile.x.stride;
  block.x = tile.x.values + tile.first * block.limbs * block.x_stride;
  block.x_sum = tile.x.sums + tile.first * block.limbs * tile.x.num_sums;
  block.x_sum_stride = tile.x.num_sums;
  if (form_.in_limbs) {
    block.x_scale = tile.x.segment_scales + tile.first * kLimbs * tile.x.num_segment_scales;
    block.x_scale_stride = tile.x.num_segment_scales;
  }
  block.minimum_sum = tile.x.minimum_sums + tile.first * tile.x.num_minimums;
  block.minimum_sum_stride = tile.x.num_minimums;
  if (const CodeSet set = weights_.shape.key.codes; has_code_book(set)) {
    block.code_book = code_book(set).data();
    block.factor_unit = factor_unit(set);
  }
  block.zero = weights_.shape.key.symmetric ? 0 : kStepZeroPoint;
  block.group_cols = static_cast<int>(panels_.group_cols());
  block.groups = panels_.num_groups();
  for (int p = 0; p < block.panels; ++p) {
    const int64_t panel = pair.panel + p * pair.distance;
    block.w[p] = panels_.codes(pair.expert, panel);
    block.steps[p] = panels_.scale_steps(pair.expert, panel);
    block.minimums[p] = panels_.minimum_steps(pair.expert, panel);
    block.sum[p] = sums.of[p];
    if (!tile.prefetch) continue;
    const int64_t next = tile.next.panel + p * tile.next.distance;
    block.codes_jump[p] = panels_.codes(tile.next.expert, next) - block.w[p];
    block.steps_jump[p] =
        (panels_.scale_steps(tile.next.expert, next).factor - block.steps[p].factor) *
        static_cast<int64_t>(sizeof(uint16_t));
  }
  steps_->fn(block);
}

// Use few rows per call, so that keep_awake runs often enough in between.
void MacroKernel::subtract_minimums(const PanelPair& pair, const RowTile& tile,
                                    TileScratch& scratch, TileSums& sums) const {
  constexpr int64_t kProducts = 512, kLeastRows = 4;
  const int64_t groups = tile.x.num_minimums;
  MinimumArgs args;
  args.x_sum_stride = groups;
  for (int p = 0; p < pair.panels(); ++p) {
    const int64_t panel = pair.panel + p * pair.distance;
    args.scale = panels_.row_scales(pair.expert, panel, sums.scales[p]);
    for (int64_t group = 0; group < groups; group += args.groups) {
      args.groups = std::min(groups - group, panels_.minimum_groups());
      args.minimum = panels_.minimums(pair.expert, panel, group, args.groups, scratch.minimums);
      const int64_t step = std::max(kProducts / args.groups, kLeastRows) / kLeastRows * kLeastRows;
      for (int64_t row = 0; row < tile.count; row += step) {
        args.sum = sums.of[p] + row * kPanelRows;
        args.rows = static_cast<int>(std::min(step, tile.count - row));
        args.x_sum = tile.x.minimum_sums + (tile.first + row) * groups + group;
        vector_ops().subtract_minimums(args);
        if (kernels_.keep_awake != nullptr) kernels_.keep_awake();
      }
      args.scale = nullptr;
    }
  }
}

// A row's sums are the sums over its limbs. Add the smallest limb first.
void MacroKernel::add_limbs(int rows, float* sums) const {
  static_assert(kLimbs == 3);
  for (int r = 0; r < rows; ++r) {
    const float* const limb = sums + r * kLimbs * kPanelRows;
    for (int n = 0; n < kPanelRows; ++n)
      sums[r * kPanelRows + n] = limb[2 * kPanelRows + n] + limb[kPanelRows + n] + limb[n];
  }
}

StoreArgs MacroKernel::result(const PanelPair& pair, int p, const RowTile& tile,
                              TileSums& sums) const {
  const int64_t panel = pair.panel + p * pair.distance;
  StoreArgs f;
  f.sum = sums.of[p];
  f.rows = tile.count;
  f.columns =
      static_cast<int>(std::min<int64_t>(kPanelRows, weights_.shape.n - panel * kPanelRows));
  if (tile.x.num_scales == 1) {
    f.x_scale = tile.x.scales + tile.first;
    f.x_scale_stride = 1;
  }
  if (tile.x.num_minimums == 0 && steps_ == nullptr)
    f.w_scale = panels_.row_scales(pair.expert, panel, sums.scales[p]);
  f.bias = panels_.bias(pair.expert, panel);
  return f;
}

}  // namespace moracle::cpu
