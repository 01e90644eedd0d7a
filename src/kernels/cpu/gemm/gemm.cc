// One grouped GEMM for all line kernels; line_walk.h splits the work over threads.

#include "kernels/cpu/gemm/plan.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/text.h"
#include "base/try.h"
#include "kernels/check_ops.h"
#include "kernels/cpu/gemm/schedule.h"
#include "kernels/cpu/ops/quantize_row.h"
#include "kernels/cpu/simd/vector_ops.h"
#include "quant/activation.h"

namespace moracle::cpu {
namespace {

// The form for many rows: codes are multiplied as stored where a kernel supports it.
LineForm main_form(const MatrixShape& shape, const Scheme& scheme, LineArithmetic arithmetic,
                   const LineKernels& kernels) {
  const LineForm by_codes{arithmetic, true};
  if (arithmetic == LineArithmetic::kInt16) return by_codes;
  const bool floats = arithmetic == LineArithmetic::kF32;
  const bool all_rows = shape.key.quantized() ? kernels.codes_for_all_rows && !floats : floats;
  return all_rows && LinePass::serves(shape, scheme, by_codes, kernels) ? by_codes
                                                                        : LineForm{arithmetic};
}

// The form for few rows by codes: integers if the rows arrive as integers; floats in parts of int8
// where kernels prefer them, also to products of one bf16 part, which they exceed in accuracy; else
// f32.
LineForm few_form(const MatrixShape& shape, const Scheme& scheme, LineArithmetic arithmetic,
                  const LineKernels& kernels) {
  const bool floats = arithmetic != LineArithmetic::kInt8;
  if (has_int8_rows(scheme) && arithmetic != LineArithmetic::kF32)
    return {LineArithmetic::kInt8, true};
  // Short units spend the time that parts save on scaling their sums.
  constexpr int64_t kLong = 64;
  const LineForm parts{LineArithmetic::kInt8, true, true};
  const bool in_parts = kernels.floats_in_parts && floats && !scheme.activation &&
                        LinePass::serves(shape, scheme, parts, kernels) &&
                        unit_cols(shape, parts, 0) >= kLong;
  return in_parts ? parts : LineForm{LineArithmetic::kF32, true};
}

// A deterministic plan uses one arithmetic, so that a token's bits depend on the token alone.
bool has_few_form(const MatrixShape& shape, const Scheme& scheme, LineArithmetic arithmetic,
                  const LineKernels& kernels, bool deterministic) {
  const bool same_bits = arithmetic == LineArithmetic::kInt8;
  // int16 is as fast with one row as with many.
  if (arithmetic == LineArithmetic::kInt16) return false;
  if ((!same_bits && deterministic) || !shape.key.quantized()) return false;
  const LineForm few = few_form(shape, scheme, arithmetic, kernels);
  return (few.in_parts || !main_form(shape, scheme, arithmetic, kernels).by_codes) &&
         LinePass::serves(shape, scheme, few, kernels);
}

// Maximum rows of the form for few rows. From three rows on, bf16 products of codes need fewer
// instructions than three parts of int8: one thread of a Zen 4 takes 1,030 and 843 µs with one row.
int few_rows_of(LineForm main, LineForm few, const LineKernels& kernels) {
  constexpr int kRowsInParts = 2;
  return main.by_codes && few.in_parts ? kRowsInParts : kernels.few_rows;
}

// Whether rows arrive as codes with separate scales.
bool as_codes(const Scheme& scheme, LineArithmetic arithmetic) {
  const auto& key = scheme.activation;
  return key && arithmetic != LineArithmetic::kF32 && !vnni16::scale_is_exponent({0, 0, *key});
}

// Rows of floats in bf16 have two parts, unless the request needs only one.
RowForm row_form(const MatrixShape& shape, const Scheme& scheme, LineArithmetic arithmetic,
                 const LineKernels& kernels, bool has_few_form, bool one_part) {
  RowForm form;
  form.arithmetic = arithmetic;
  form.two_parts = arithmetic == LineArithmetic::kBf16 && !scheme.activation && !one_part;
  const LineForm few =
      has_few_form ? few_form(shape, scheme, arithmetic, kernels) : LineForm{arithmetic};
  form.few_rows = few_rows_of(main_form(shape, scheme, arithmetic, kernels), few, kernels);
  form.few = few.arithmetic;
  form.few_in_parts = few.in_parts;
  form.order = shape.key.dtype == DType::kBF16 ? ColumnOrder::kPlain : kernels.decoders->order;
  form.k = shape.k;
  LineForm by_unit{form.few};
  if (few.in_parts) by_unit = few;
  if (arithmetic == LineArithmetic::kInt16) by_unit = {arithmetic, true};
  form.unit = unit_cols(shape, by_unit, x_group_cols(scheme));
  if (as_codes(scheme, arithmetic)) form.num_scales = num_groups(*scheme.activation, shape.k);
  return form;
}

class LineLinear : public LinearKernel {
 public:
  LineLinear(const KernelWeights& weights, LineArithmetic arithmetic, const LineKernels& kernels,
             const KernelPlan& plan, CpuDevice& device)
      : weights_(weights),
        kernels_(kernels),
        device_(device),
        activates_(plan.activates),
        quantizes_(plan.quantizes),
        pass_(weights_, main_form(weights_.shape, weights_.scheme, arithmetic, kernels), kernels) {
    const MatrixShape& shape = weights_.shape;
    const Scheme& scheme = weights_.scheme;
    const bool few = has_few_form(shape, scheme, arithmetic, kernels, plan.deterministic);
    if (few) few_.emplace(weights_, few_form(shape, scheme, arithmetic, kernels), kernels);
    form_ = row_form(shape, scheme, arithmetic, kernels, few, plan.product_bits == kBf16Bits);
  }

  /// Reserves the plan's scratch, or more if the device has more threads than the plan assumed.
  Status reserve(const KernelPlan& plan) {
    int64_t bytes = plan.scratch_bytes;
    if (plan.activates)
      bytes = std::max(bytes, device_.pool().size() * LineWalk::item_bytes(form_));
    return device_.reserve_scratch(bytes);
  }

  bool serves(const LinearCall& call) const override {
    if (call.from<GroupedRows>() == nullptr || call.to<LinearCall::Route>() != nullptr)
      return false;
    if (call.to<LinearCall::Activate>() != nullptr) return activates_;
    return call.to<LinearCall::Quantize>() == nullptr || quantizes_;
  }
  Status run(const LinearCall& call, Stream) override;

 private:
  PanelPairs pairs(bool gated = false) const {
    const int64_t panels = pass_.panels().num_panels();
    return {panels, gated ? panels / 2 : 0};
  }
  /// `done` takes a RowItem; without `done`, threads own columns.
  template <class Finish, class Done = std::nullptr_t>
  void walk(const GroupedRows& rows, const PanelPairs& pairs, const Destination& to,
            const Finish& finish, const Done& done = nullptr);
  void store(const GroupedRows& rows, const Matrix& y);
  template <class Done>
  Status activate(const GroupedRows& rows, const ActivationSpec& activation, const Matrix& out,
                  const Done& done);
  void combine(const GroupedRows& rows, const LinearCall::Combine& combination, const Matrix& out);

  const KernelWeights& weights_;
  const LineKernels& kernels_;
  CpuDevice& device_;
  const bool activates_, quantizes_;
  LinePass pass_;
  std::optional<LinePass> few_;  // for experts with few rows
  RowForm form_;
};

template <class Finish, class Done>
void LineLinear::walk(const GroupedRows& given, const PanelPairs& pairs, const Destination& to,
                      const Finish& finish, const Done& done) {
  const ExpertRows rows(given, weights_.num_experts);
  if (rows.count() == 0) return;
  ThreadPool& pool = device_.pool();
  const RowPacker packer(form_, given, *kernels_.rows);
  LineWalk walk(pass_, few_, kernels_, form_, rows, pairs, to);
  if constexpr (std::is_same_v<Done, std::nullptr_t>) {
    walk.by_columns(packer, device_.scratch(), pool, finish);
  } else {
    if (walk.rows_are_better(static_cast<int64_t>(weights_.sections.bytes), pool))
      return walk.by_rows(packer, device_.scratch(), pool, finish, done);
    walk.by_columns(packer, device_.scratch(), pool, finish);
    pool.split(rows.count(), [&](int64_t first, int64_t past) { done(RowItem{0, first, past}); });
  }
}

Status LineLinear::run(const LinearCall& call, Stream) {
  const GroupedRows& rows = *call.from<GroupedRows>();
  if (const auto* const to = call.to<LinearCall::Activate>())
    return activate(rows, to->activation, call.out, [](const RowItem&) {});
  if (const auto* const to = call.to<LinearCall::Quantize>()) {
    return activate(rows, to->activation, call.out, [&](const RowItem& item) {
      for (int64_t r = item.first; r < item.past; ++r)
        quantize_row(vector_ops(), to->key, call.out, r, to->codes);
    });
  }
  if (const auto* const to = call.to<LinearCall::Combine>())
    combine(rows, *to, call.out);
  else
    store(rows, call.out);
  return {};
}

void LineLinear::store(const GroupedRows& rows, const Matrix& y) {
  const Destination to{static_cast<float*>(y.data), y.stride};
  walk(rows, pairs(), to, [&](const Finished& some) {
    for (int p = 0; p < some.pair.panels(); ++p) {
      StoreArgs f = some.result(p);
      f.to = to.at(some.row()) + some.column(p);
      f.to_stride = y.stride;
      vector_ops().store_rows(f);
    }
  });
}

template <class Done>
Status LineLinear::activate(const GroupedRows& rows, const ActivationSpec& activation,
                            const Matrix& out, const Done& done) {
  MORACLE_CHECK(check_activation(activation));
  const bool gated = is_gated(activation.function);
  const Destination to{static_cast<float*>(out.data), out.stride};
  auto finish = [&](const Finished& some) {
    alignas(64) float values[2][kResultRows * kLineRows];
    for (int p = 0; p < some.pair.panels(); ++p) {
      StoreArgs f = some.result(p);
      f.to = values[p];
      f.to_stride = kLineRows;
      f.columns = kLineRows;
      vector_ops().store_rows(f);
    }
    for (int p = 0; p < (gated ? 1 : some.pair.panels()); ++p) {
      vector_ops().activate(activation, values[gated ? 0 : p], values[gated ? 1 : p],
                            int64_t{some.count} * kLineRows, values[p]);
      StoreArgs f;
      f.sum = values[p];
      f.rows = some.count;
      f.columns = static_cast<int>(std::min<int64_t>(kLineRows, out.cols - some.column(p)));
      f.to = to.at(some.row()) + some.column(p);
      f.to_stride = out.stride;
      vector_ops().store_rows(f);
    }
  };
  walk(rows, pairs(gated), to, finish, done);
  return {};
}

void LineLinear::combine(const GroupedRows& rows, const LinearCall::Combine& combination,
                         const Matrix& out) {
  if (!combination.add) {
    device_.pool().split(out.rows, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t)
        std::memset(static_cast<float*>(out.data) + t * out.stride, 0, out.cols * sizeof(float));
    });
  }
  const float* const all = combination.weights;
  const int32_t* const slot = combination.row_slot + rows.first_row;
  const Destination to{static_cast<float*>(out.data), out.stride,
                       combination.row_token + rows.first_row};
  walk(rows, pairs(), to, [&](const Finished& some) {
    float weights[kResultRows];
    for (int r = 0; all != nullptr && r < some.count; ++r) weights[r] = all[slot[some.row() + r]];
    for (int p = 0; p < some.pair.panels(); ++p) {
      StoreArgs f = some.result(p);
      f.to = to.data + some.column(p);
      f.to_stride = to.stride;
      f.to_row = to.row + some.row();
      f.add = true;
      f.weight = all == nullptr ? nullptr : weights;
      vector_ops().store_rows(f);
    }
  });
}

// Adds the kernels of a plan: codes multiplied directly for few rows of an expert, where a kernel
// supports it; the main form for more rows.
void add_kernels(KernelPlan& plan, const KernelRequest& request, LineForm main, bool has_few_form,
                 LineForm few, bool two_parts, const LineKernels& kernels) {
  const DType codes = request.shape.key.dtype;
  int64_t from_rows = 1;
  if (has_few_form) {
    plan.kernels.push_back({1, line_kernel_name(codes, few, false, kernels)});
    plan.kernels.back().to_rows = few_rows_of(main, few, kernels);
    from_rows = plan.kernels.back().to_rows + 1;
  }
  const int64_t from_tokens = (from_rows + request.expert_rows - 1) / request.expert_rows;
  if (from_tokens > request.max_num_tokens) return;
  plan.kernels.push_back({from_tokens, line_kernel_name(codes, main, two_parts, kernels)});
  plan.kernels.back().from_rows = from_rows;
}

}  // namespace

LineArithmetic arithmetic_for(const MatrixShape& shape, const Scheme& scheme, bool bf16,
                              int64_t group_multiple) {
  const DType dtype = shape.key.dtype;
  const bool whole =
      vnni16::num_groups(shape) <= 1 || vnni16::group_cols(shape) % group_multiple == 0;
  if (has_int8_rows(scheme) && whole) return LineArithmetic::kInt8;
  const bool exact = dtype != DType::kF16 && dtype != DType::kF32;
  return bf16 && exact ? LineArithmetic::kBf16 : LineArithmetic::kF32;
}

bool has_int16(const MatrixShape& shape, const Scheme& scheme, const LineKernels& kernels) {
  return !scheme.activation &&
         LinePass::serves(shape, scheme, {LineArithmetic::kInt16, true}, kernels);
}

KernelPlan plan_lines(const KernelRequest& request, LineArithmetic arithmetic,
                      const LineKernels& kernels, int threads) {
  const MatrixShape& shape = request.shape;
  const auto& key = request.scheme.activation;
  KernelPlan plan;
  const bool has_few =
      has_few_form(shape, request.scheme, arithmetic, kernels, request.deterministic);
  plan.deterministic = !has_few || arithmetic == LineArithmetic::kInt8;
  const bool codes = as_codes(request.scheme, arithmetic);
  plan.input_dtype = codes ? key->dtype : DType::kF32;
  const RowForm form =
      row_form(shape, request.scheme, arithmetic, kernels, has_few, request.bf16_activations);
  if (arithmetic == LineArithmetic::kBf16 && !request.scheme.activation)
    plan.product_bits = form.two_parts ? 2 * kBf16Bits : kBf16Bits;
  if (arithmetic == LineArithmetic::kInt16) {
    plan.product_bits = kInt16Bits;
    plan.product_group = form.unit;
  }
  add_kernels(plan, request, main_form(shape, request.scheme, arithmetic, kernels), has_few,
              few_form(shape, request.scheme, arithmetic, kernels), form.two_parts, kernels);
  plan.scratch_bytes = static_cast<int64_t>(
      packed_bytes(form, std::min(request.max_rows, LineWalk::batch_rows(form))));
  if (request.activation != nullptr) {
    const bool gated = is_gated(request.activation->function);
    plan.activates = !gated || shape.n % (2 * kLineRows) == 0;
    plan.quantizes = plan.activates && key && plan.input_dtype == key->dtype;
    if (plan.activates)
      plan.scratch_bytes = std::max(plan.scratch_bytes, threads * LineWalk::item_bytes(form));
  }
  plan.combines = true;
  plan.in_parts = true;
  return plan;
}

Result<std::unique_ptr<GroupedLinear>> make_lines(KernelWeights&& weights, const KernelPlan& plan,
                                                  LineArithmetic arithmetic,
                                                  const LineKernels& kernels, Device& device) {
  auto* cpu = dynamic_cast<CpuDevice*>(&device);
  if (cpu == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "kernels of lines", "the cpu device",
                 "it is " + device.name()};
  }
  auto linear = std::make_unique<GroupedLinear>(std::move(weights));
  MORACLE_CHECK(linear->add<LineLinear>(arithmetic, kernels, plan, *cpu).reserve(plan));
  return linear;
}

}  // namespace moracle::cpu
