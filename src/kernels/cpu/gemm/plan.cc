// Plans a grouped GEMM: the forms of rows and weights, and the memory that they need.
#include "kernels/cpu/gemm/plan.h"

#include <algorithm>
#include <optional>

#include "kernels/cpu/gemm/schedule.h"
#include "quant/activation.h"

namespace moracle::cpu {
namespace {

// Whether many rows are faster by stored scales. A row of int8 then needs two tile products for 64
// columns, and floats in limbs need six. Two bf16 terms need four, but eight where groups of 16
// columns fill half a tile; one term needs half as many.
bool gains_for_many_rows(const KernelRequest& request) {
  constexpr int64_t kTileCols = 32;  // of bf16
  if (has_int8_rows(request.scheme)) return true;
  return !request.scheme.activation && !request.bf16_activations &&
         vnni16::group_cols(request.shape) < kTileCols;
}

// The form for many rows: the best kernel of the table that multiplies codes as stored, or
// unpacked. Rows of floats in bf16 have two terms, unless the request needs only one.
DotForm main_form(const KernelRequest& request, Operand arithmetic, const UkernelSet& kernels) {
  const DType dtype = request.shape.key.dtype;
  const DotForm stored{Operand::kInt8, false, !has_int8_rows(request.scheme), false,
                       stored_scales(request.shape.key)};
  if (stored.by_stored_scales() && gains_for_many_rows(request) &&
      MacroKernel::serves(request.shape, request.scheme, stored, kernels))
    return stored;
  const DotForm unpacked{arithmetic}, by_codes{arithmetic, true};
  DotForm form = unpacked;
  if (arithmetic == Operand::kInt16) return by_codes;
  if (MacroKernel::serves(request.shape, request.scheme, by_codes, kernels)) {
    const DotKernel* const other = dot_of(kernels, unpacked, dtype);
    const bool unpacks = other != nullptr && kernels.unpack(dtype, arithmetic) != nullptr;
    form.by_codes = !unpacks || dot_of(kernels, by_codes, dtype) < other;
  }
  form.two_terms =
      arithmetic == Operand::kBf16 && !request.scheme.activation && !request.bf16_activations;
  return form;
}

// Whether few rows are faster by stored scales. Codes of 8 bits beside rows of int8 need no
// unpacking: in registers of 256 bits the kernel for many rows then takes a tenth less time.
bool gains_by_stored_scales(const QuantKey& key, const DotForm& form, const UkernelSet& kernels) {
  if (form.in_limbs || key.dtype != DType::kI8 || key.codes != CodeSet::kAny) return true;
  const StepKernel* const kernel = kernels.steps(key, kSkinnyRows);
  return kernel != nullptr && kernel->isa == UkernelIsa::kAvx512Vnni;
}

// The form for few rows by codes, if it differs from `main`. Rows that arrive as integers stay
// integers. Floats become limbs of int8 where kernels prefer them, also to one bf16 term, because
// limbs are more accurate. Other floats stay f32.
std::optional<DotForm> skinny_form(const KernelRequest& request, const DotForm& main,
                                   const UkernelSet& kernels) {
  const MatrixShape& shape = request.shape;
  const Scheme& scheme = request.scheme;
  const bool integers = main.x == Operand::kInt8;
  // int16 is as fast with one row as with many.
  if (main.x == Operand::kInt16 || !shape.key.quantized()) return {};
  // A deterministic plan uses one arithmetic, so that a token's bits depend on the token alone.
  if (request.deterministic && !integers) return {};
  // Integer scales round once for kFactorCols columns, so their bits differ from those of `main`
  // without them. With f16 scales rows of int8 have the bits of `main`.
  const DotForm stored{Operand::kInt8, true, !has_int8_rows(scheme), false,
                       stored_scales(shape.key)};
  const bool taken = has_int8_rows(scheme) ? main.x != Operand::kF32 : !scheme.activation;
  const bool allowed =
      !request.deterministic || stored.scales == StoredScales::kHalves || main.by_stored_scales();
  if (stored.by_stored_scales() && allowed && taken &&
      gains_by_stored_scales(shape.key, stored, kernels) &&
      MacroKernel::serves(shape, scheme, stored, kernels))
    return stored;
  DotForm skinny{Operand::kF32, true};
  if (has_int8_rows(scheme) && main.x != Operand::kF32) {
    skinny.x = Operand::kInt8;
  } else if (kernels.floats_in_limbs && !integers && !scheme.activation) {
    // Short segments spend the time that limbs save on scaling their sums.
    constexpr int64_t kLong = 64;
    const DotForm limbs{Operand::kInt8, true, true};
    if (MacroKernel::serves(shape, scheme, limbs, kernels) &&
        segment_cols(shape, limbs, 0) >= kLong)
      skinny = limbs;
  }
  if (main.by_codes && !skinny.in_limbs) return {};
  return MacroKernel::serves(shape, scheme, skinny, kernels) ? std::optional(skinny) : std::nullopt;
}

// Maximum rows of the form for few rows. From three rows on, bf16 products of codes need fewer
// instructions than three limbs of int8: one thread of a Zen 4 takes 1,030 and 843 µs with one row.
int skinny_rows_of(const DotForm& main, const DotForm& skinny, const UkernelSet& kernels) {
  constexpr int kRowsInLimbs = 2;
  if (skinny.by_stored_scales()) return kSkinnyRows;
  return main.by_codes && skinny.in_limbs ? kRowsInLimbs : kernels.skinny_rows;
}

// Significant bits of float activations in products. As int16: those of the largest of a segment.
int product_bits(const DotForm& main, const Scheme& scheme) {
  if (main.x == Operand::kInt16) return 15;
  const bool bf16 = main.x == Operand::kBf16 && !scheme.activation;
  return !bf16 ? 24 : main.two_terms ? 16 : 8;
}

// Whether rows arrive as codes with separate scales.
bool as_codes(const Scheme& scheme, Operand arithmetic) {
  const auto& key = scheme.activation;
  return key && arithmetic != Operand::kF32 && !vnni16::scale_is_exponent({0, 0, *key});
}

const DotForm& dot_form_of(const PlannedKernel& kernel) {
  return std::get<CpuDotForm>(kernel.form).dot;
}

}  // namespace

RowForm row_form(const MatrixShape& shape, const Scheme& scheme,
                 const std::vector<PlannedKernel>& planned, const UkernelSet& kernels) {
  const DotForm& main = dot_form_of(planned.back());
  const bool has_skinny = planned.size() > 1;
  const DotForm skinny = has_skinny ? dot_form_of(planned.front()) : DotForm{main.x};
  RowForm form;
  form.x = main.x;
  form.two_terms = main.two_terms;
  form.skinny = skinny.x;
  form.skinny_in_limbs = skinny.in_limbs;
  form.in_limbs = main.in_limbs;
  if (has_skinny) form.skinny_rows = static_cast<int>(planned.front().range.to_rows);
  form.order = shape.key.dtype == DType::kBF16 ? ColumnOrder::kPlain : kernels.order;
  form.k = shape.k;
  DotForm by_segment{form.skinny};
  if (skinny.in_limbs) by_segment = skinny;
  if (main.x == Operand::kInt16) by_segment = {main.x, true};
  form.segment = segment_cols(shape, by_segment, x_group_cols(scheme));
  if (skinny.by_stored_scales() && skinny.in_limbs)
    form.scale_segments = kFactorCols / form.segment;
  if (as_codes(scheme, main.x)) {
    form.num_scales = num_groups(*scheme.activation, shape.k);
    form.scale_cols = group_cols(*scheme.activation, shape.k);
  }
  if (shape.key.minimums) form.minimum_cols = vnni16::group_cols(shape);
  return form;
}

Operand arithmetic_for(const MatrixShape& shape, const Scheme& scheme, bool bf16,
                       int64_t group_multiple) {
  const DType dtype = shape.key.dtype;
  const bool whole =
      vnni16::num_groups(shape) <= 1 || vnni16::group_cols(shape) % group_multiple == 0;
  if (has_int8_rows(scheme) && whole) return Operand::kInt8;
  const bool exact = dtype != DType::kF16 && dtype != DType::kF32;
  return bf16 && exact ? Operand::kBf16 : Operand::kF32;
}

bool has_int16(const MatrixShape& shape, const Scheme& scheme, DotIsa isa) {
  return !scheme.activation &&
         MacroKernel::serves(shape, scheme, {Operand::kInt16, true}, ukernels(isa));
}

KernelPlan plan_gemm(const KernelRequest& request, Operand arithmetic, DotIsa isa, int threads) {
  const MatrixShape& shape = request.shape;
  const auto& key = request.scheme.activation;
  const UkernelSet& kernels = ukernels(isa);
  const DotForm main = main_form(request, arithmetic, kernels);
  const std::optional<DotForm> skinny = skinny_form(request, main, kernels);
  KernelPlan plan;
  const auto add = [&](const DotForm& line, const KernelRange& range) {
    plan.kernels.push_back(
        {CpuDotForm{isa, line, shape.key.dtype, instruction_of(kernels, line, shape.key)}, range});
  };
  int64_t from_rows = 1;
  if (skinny) {
    const int skinny_rows = skinny_rows_of(main, *skinny, kernels);
    add(*skinny, {.to_rows = skinny_rows});
    from_rows = skinny_rows + 1;
  }
  add(main, {.from_tokens = (from_rows + request.expert_rows - 1) / request.expert_rows,
             .from_rows = from_rows});
  plan.deterministic = !skinny || main.by_stored_scales() ||
                       (arithmetic == Operand::kInt8 && skinny->scales != StoredScales::kSteps);
  plan.input_dtype = as_codes(request.scheme, arithmetic) ? key->dtype : DType::kF32;
  const RowForm form = row_form(shape, request.scheme, plan.kernels, kernels);
  plan.product_bits = product_bits(main, request.scheme);
  if (arithmetic == Operand::kInt16) plan.product_group = form.segment;
  plan.scratch_bytes = static_cast<int64_t>(
      packed_bytes(form, std::min(request.max_rows, Schedule::batch_rows(form))));
  if (request.activation != nullptr) {
    const bool gated = is_gated(request.activation->function);
    plan.activates = !gated || shape.n % (2 * kPanelRows) == 0;
    plan.quantizes = plan.activates && key && plan.input_dtype == key->dtype;
    if (plan.activates)
      plan.scratch_bytes = std::max(plan.scratch_bytes, threads * Schedule::item_bytes(form));
  }
  plan.combines = true;
  plan.in_chunks = true;
  return plan;
}

}  // namespace moracle::cpu
