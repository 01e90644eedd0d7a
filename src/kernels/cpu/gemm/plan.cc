// Plans a grouped GEMM: the forms in which its rows and weights meet, and the memory that they
// need.
#include "kernels/cpu/gemm/plan.h"

#include <algorithm>

#include "kernels/cpu/gemm/schedule.h"
#include "quant/activation.h"

namespace moracle::cpu {
namespace {

// The form for many rows: the best kernel of the table that multiplies codes as stored, or decoded.
LineForm main_form(const MatrixShape& shape, const Scheme& scheme, LineArithmetic arithmetic,
                   const UkernelSet& kernels) {
  const LineForm by_codes{arithmetic, true}, decoded{arithmetic};
  if (!MacroKernel::serves(shape, scheme, by_codes, kernels)) return decoded;
  const DType dtype = shape.key.dtype;
  const DotKernel* const other = dot_of(kernels, decoded, dtype);
  const bool decodes = other != nullptr && kernels.decode(dtype, arithmetic) != nullptr;
  return decodes && other < dot_of(kernels, by_codes, dtype) ? decoded : by_codes;
}

// The form for few rows by codes: integers if the rows arrive as integers; floats in limbs of int8
// where kernels prefer them, also to products of one bf16 term, which they exceed in accuracy; else
// f32.
LineForm skinny_form(const MatrixShape& shape, const Scheme& scheme, LineArithmetic arithmetic,
                     const UkernelSet& kernels) {
  const bool floats = arithmetic != LineArithmetic::kInt8;
  if (has_int8_rows(scheme) && arithmetic != LineArithmetic::kF32)
    return {LineArithmetic::kInt8, true};
  // Short segments spend the time that limbs save on scaling their sums.
  constexpr int64_t kLong = 64;
  const LineForm limbs{LineArithmetic::kInt8, true, true};
  const bool in_parts = kernels.floats_in_limbs && floats && !scheme.activation &&
                        MacroKernel::serves(shape, scheme, limbs, kernels) &&
                        segment_cols(shape, limbs, 0) >= kLong;
  return in_parts ? limbs : LineForm{LineArithmetic::kF32, true};
}

// A deterministic plan uses one arithmetic, so that a token's bits depend on the token alone.
bool has_skinny_form(const MatrixShape& shape, const Scheme& scheme, LineArithmetic arithmetic,
                     const UkernelSet& kernels, bool deterministic) {
  const bool same_bits = arithmetic == LineArithmetic::kInt8;
  // int16 is as fast with one row as with many.
  if (arithmetic == LineArithmetic::kInt16) return false;
  if ((!same_bits && deterministic) || !shape.key.quantized()) return false;
  const LineForm skinny = skinny_form(shape, scheme, arithmetic, kernels);
  return (skinny.in_parts || !main_form(shape, scheme, arithmetic, kernels).by_codes) &&
         MacroKernel::serves(shape, scheme, skinny, kernels);
}

// Maximum rows of the form for few rows. From three rows on, bf16 products of codes need fewer
// instructions than three limbs of int8: one thread of a Zen 4 takes 1,030 and 843 µs with one row.
int skinny_rows_of(LineForm main, LineForm skinny, const UkernelSet& kernels) {
  constexpr int kRowsInLimbs = 2;
  return main.by_codes && skinny.in_parts ? kRowsInLimbs : kernels.skinny_rows;
}

// Whether rows arrive as codes with separate scales.
bool as_codes(const Scheme& scheme, LineArithmetic arithmetic) {
  const auto& key = scheme.activation;
  return key && arithmetic != LineArithmetic::kF32 && !vnni16::scale_is_exponent({0, 0, *key});
}

// Rows of floats in bf16 have two terms, unless the request needs only one.
RowForm row_form(const MatrixShape& shape, const Scheme& scheme, LineArithmetic arithmetic,
                 const UkernelSet& kernels, bool has_skinny_form, bool one_term) {
  RowForm form;
  form.arithmetic = arithmetic;
  form.two_terms = arithmetic == LineArithmetic::kBf16 && !scheme.activation && !one_term;
  const LineForm skinny =
      has_skinny_form ? skinny_form(shape, scheme, arithmetic, kernels) : LineForm{arithmetic};
  form.skinny_rows = skinny_rows_of(main_form(shape, scheme, arithmetic, kernels), skinny, kernels);
  form.skinny = skinny.arithmetic;
  form.skinny_in_limbs = skinny.in_parts;
  form.order = shape.key.dtype == DType::kBF16 ? ColumnOrder::kPlain : kernels.order;
  form.k = shape.k;
  LineForm by_segment{form.skinny};
  if (skinny.in_parts) by_segment = skinny;
  if (arithmetic == LineArithmetic::kInt16) by_segment = {arithmetic, true};
  form.segment = segment_cols(shape, by_segment, x_group_cols(scheme));
  if (as_codes(scheme, arithmetic)) form.num_scales = num_groups(*scheme.activation, shape.k);
  return form;
}

// Adds the kernels of a plan: codes multiplied directly for few rows of an expert, where a kernel
// supports it; the main form for more rows.
void add_kernels(KernelPlan& plan, const KernelRequest& request, const GemmForms& forms,
                 const UkernelSet& kernels) {
  const DType codes = request.shape.key.dtype;
  int64_t from_rows = 1;
  if (forms.skinny) {
    plan.kernels.push_back({1, gemm_kernel_name(codes, *forms.skinny, false, kernels)});
    plan.kernels.back().to_rows = forms.rows.skinny_rows;
    from_rows = forms.rows.skinny_rows + 1;
  }
  const int64_t from_tokens = (from_rows + request.expert_rows - 1) / request.expert_rows;
  if (from_tokens > request.max_num_tokens) return;
  plan.kernels.push_back(
      {from_tokens, gemm_kernel_name(codes, forms.main, forms.rows.two_terms, kernels)});
  plan.kernels.back().from_rows = from_rows;
}

}  // namespace

GemmForms forms_of(const MatrixShape& shape, const Scheme& scheme, LineArithmetic arithmetic,
                   const UkernelSet& kernels, bool deterministic, bool one_term) {
  GemmForms forms;
  forms.main = main_form(shape, scheme, arithmetic, kernels);
  const bool skinny = has_skinny_form(shape, scheme, arithmetic, kernels, deterministic);
  if (skinny) forms.skinny = skinny_form(shape, scheme, arithmetic, kernels);
  forms.rows = row_form(shape, scheme, arithmetic, kernels, skinny, one_term);
  return forms;
}

LineArithmetic arithmetic_for(const MatrixShape& shape, const Scheme& scheme, bool bf16,
                              int64_t group_multiple) {
  const DType dtype = shape.key.dtype;
  const bool whole =
      vnni16::num_groups(shape) <= 1 || vnni16::group_cols(shape) % group_multiple == 0;
  if (has_int8_rows(scheme) && whole) return LineArithmetic::kInt8;
  const bool exact = dtype != DType::kF16 && dtype != DType::kF32;
  return bf16 && exact ? LineArithmetic::kBf16 : LineArithmetic::kF32;
}

bool has_int16(const MatrixShape& shape, const Scheme& scheme, const UkernelSet& kernels) {
  return !scheme.activation &&
         MacroKernel::serves(shape, scheme, {LineArithmetic::kInt16, true}, kernels);
}

KernelPlan plan_gemm(const KernelRequest& request, LineArithmetic arithmetic,
                     const UkernelSet& kernels, int threads) {
  const MatrixShape& shape = request.shape;
  const auto& key = request.scheme.activation;
  KernelPlan plan;
  const GemmForms forms = forms_of(shape, request.scheme, arithmetic, kernels,
                                   request.deterministic, request.bf16_activations);
  const RowForm& rows = forms.rows;
  plan.deterministic = !forms.skinny || arithmetic == LineArithmetic::kInt8;
  plan.input_dtype = as_codes(request.scheme, arithmetic) ? key->dtype : DType::kF32;
  if (arithmetic == LineArithmetic::kBf16 && !request.scheme.activation)
    plan.product_bits = rows.two_terms ? 2 * kBf16Bits : kBf16Bits;
  if (arithmetic == LineArithmetic::kInt16) {
    plan.product_bits = kInt16Bits;
    plan.product_group = rows.segment;
  }
  add_kernels(plan, request, forms, kernels);
  plan.scratch_bytes = static_cast<int64_t>(
      packed_bytes(rows, std::min(request.max_rows, Schedule::batch_rows(rows))));
  if (request.activation != nullptr) {
    const bool gated = is_gated(request.activation->function);
    plan.activates = !gated || shape.n % (2 * kPanelRows) == 0;
    plan.quantizes = plan.activates && key && plan.input_dtype == key->dtype;
    if (plan.activates)
      plan.scratch_bytes = std::max(plan.scratch_bytes, threads * Schedule::item_bytes(rows));
  }
  plan.combines = true;
  plan.in_parts = true;
  return plan;
}

}  // namespace moracle::cpu
