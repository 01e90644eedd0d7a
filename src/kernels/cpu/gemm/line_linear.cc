// One grouped GEMM for all line kernels; line_walk.h splits the work over threads.

#if defined(__x86_64__)

#include "kernels/cpu/gemm/line_linear.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/text.h"
#include "base/try.h"
#include "kernels/check_ops.h"
#include "kernels/cpu/gemm/line_walk.h"
#include "kernels/cpu/ops/quantize_row.h"
#include "kernels/cpu/simd/vector_ops.h"
#include "quant/activation.h"

namespace moracle::cpu {
namespace {

// The instruction set's kernels, and what they need of the CPU.
struct LineSet {
  const LineKernels& kernels;
  Isa needs;
};

const LineSet& line_set(LineIsa isa) {
  constexpr Isa kVnni = Isa::kAvx512 | Isa::kAvx512Vnni;
  static const LineSet kSets[] = {{kAvx2Lines, Isa::kAvx2},
                                  {kAvxVnniLines, Isa::kAvx2 | Isa::kAvxVnni},
                                  {kAvx512Lines, kVnni},
                                  {kAvx512Bf16Lines, kVnni | Isa::kAvx512Bf16},
                                  {kAmxLines, kVnni | Isa::kAmxInt8 | Isa::kAmxBf16}};
  return kSets[static_cast<size_t>(isa)];
}

// The form for many rows: codes are multiplied as stored where a kernel supports it. Rows of floats
// in bf16 have two parts, unless the request needs only one.
LineForm main_form(const KernelRequest& request, LineArithmetic arithmetic,
                   const LineKernels& kernels) {
  const MatrixShape& shape = request.shape;
  const Scheme& scheme = request.scheme;
  LineForm form{arithmetic, true};
  if (arithmetic == LineArithmetic::kInt16) return form;
  const bool floats = arithmetic == LineArithmetic::kF32;
  const bool all_rows = shape.key.quantized() ? kernels.codes_for_all_rows && !floats : floats;
  form.by_codes = all_rows && LinePass::serves(shape, scheme, form, kernels);
  form.two_parts =
      arithmetic == LineArithmetic::kBf16 && !scheme.activation && !request.bf16_activations;
  return form;
}

// The form for few rows by codes, if there is one beside `main`: integers if the rows arrive as
// integers; floats in parts of int8 where kernels prefer them, also to products of one bf16 part,
// which they exceed in accuracy; else f32.
std::optional<LineForm> few_form(const KernelRequest& request, const LineForm& main,
                                 const LineKernels& kernels) {
  const MatrixShape& shape = request.shape;
  const Scheme& scheme = request.scheme;
  const bool integers = main.arithmetic == LineArithmetic::kInt8;
  // int16 is as fast with one row as with many.
  if (main.arithmetic == LineArithmetic::kInt16 || !shape.key.quantized()) return {};
  // A deterministic plan uses one arithmetic, so that a token's bits depend on the token alone.
  if (request.deterministic && !integers) return {};
  LineForm few{LineArithmetic::kF32, true};
  if (has_int8_rows(scheme) && main.arithmetic != LineArithmetic::kF32) {
    few.arithmetic = LineArithmetic::kInt8;
  } else if (kernels.floats_in_parts && !integers && !scheme.activation) {
    // Short units spend the time that parts save on scaling their sums.
    constexpr int64_t kLong = 64;
    const LineForm parts{LineArithmetic::kInt8, true, true};
    if (LinePass::serves(shape, scheme, parts, kernels) && unit_cols(shape, parts, 0) >= kLong)
      few = parts;
  }
  if (main.by_codes && !few.in_parts) return {};
  return LinePass::serves(shape, scheme, few, kernels) ? std::optional(few) : std::nullopt;
}

// Maximum rows of the form for few rows. From three rows on, bf16 products of codes need fewer
// instructions than three parts of int8: one thread of a Zen 4 takes 1,030 and 843 µs with one row.
int few_rows_of(const LineForm& main, const LineForm& few, const LineKernels& kernels) {
  constexpr int kRowsInParts = 2;
  return main.by_codes && few.in_parts ? kRowsInParts : kernels.few_rows;
}

// Significant bits of float activations in products. As int16: those of the largest of a unit.
int product_bits(const LineForm& main, const Scheme& scheme) {
  if (main.arithmetic == LineArithmetic::kInt16) return 15;
  const bool bf16 = main.arithmetic == LineArithmetic::kBf16 && !scheme.activation;
  return !bf16 ? 24 : main.two_parts ? 16 : 8;
}

// Whether rows arrive as codes with separate scales.
bool as_codes(const Scheme& scheme, LineArithmetic arithmetic) {
  const auto& key = scheme.activation;
  return key && arithmetic != LineArithmetic::kF32 && !vnni16::scale_is_exponent({0, 0, *key});
}

const LineForm& line_of(const PlannedKernel& kernel) {
  return std::get<CpuLineForm>(kernel.form).line;
}

// The format of packed rows for the kernels of a plan.
RowForm row_form(const MatrixShape& shape, const Scheme& scheme,
                 const std::vector<PlannedKernel>& planned, const LineKernels& kernels) {
  const LineForm& main = line_of(planned.back());
  const bool has_few = planned.size() > 1;
  const LineForm few = has_few ? line_of(planned.front()) : LineForm{main.arithmetic};
  RowForm form;
  form.arithmetic = main.arithmetic;
  form.two_parts = main.two_parts;
  form.few = few.arithmetic;
  form.few_in_parts = few.in_parts;
  if (has_few) form.few_rows = static_cast<int>(planned.front().range.to_rows);
  form.order = shape.key.dtype == DType::kBF16 ? ColumnOrder::kPlain : kernels.decoders->order;
  form.k = shape.k;
  LineForm by_unit{form.few};
  if (few.in_parts) by_unit = few;
  if (main.arithmetic == LineArithmetic::kInt16) by_unit = {main.arithmetic, true};
  form.unit = unit_cols(shape, by_unit, x_group_cols(scheme));
  if (as_codes(scheme, main.arithmetic)) form.num_scales = num_groups(*scheme.activation, shape.k);
  return form;
}

class LineLinear : public LinearKernel {
 public:
  LineLinear(const KernelWeights& weights, const KernelPlan& plan, const LineKernels& kernels,
             CpuDevice& device)
      : weights_(weights),
        kernels_(kernels),
        device_(device),
        activates_(plan.activates),
        quantizes_(plan.quantizes),
        pass_(weights_, std::get<CpuLineForm>(plan.kernels.back().form), kernels),
        form_(row_form(weights_.shape, weights_.scheme, plan.kernels, kernels)) {
    if (plan.kernels.size() > 1)
      few_.emplace(weights_, std::get<CpuLineForm>(plan.kernels.front().form), kernels);
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
  RowForm form_;
  std::optional<LinePass> few_;  // for experts with few rows
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
      LineResult f = some.result(p);
      f.to = to.at(some.row()) + some.column(p);
      f.to_stride = y.stride;
      kernels_.finish(f);
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
      LineResult f = some.result(p);
      f.to = values[p];
      f.to_stride = kLineRows;
      f.columns = kLineRows;
      kernels_.finish(f);
    }
    for (int p = 0; p < (gated ? 1 : some.pair.panels()); ++p) {
      vector_ops().activate(activation, values[gated ? 0 : p], values[gated ? 1 : p],
                            int64_t{some.count} * kLineRows, values[p]);
      LineResult f;
      f.sum = values[p];
      f.rows = some.count;
      f.columns = static_cast<int>(std::min<int64_t>(kLineRows, out.cols - some.column(p)));
      f.to = to.at(some.row()) + some.column(p);
      f.to_stride = out.stride;
      kernels_.finish(f);
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
      LineResult f = some.result(p);
      f.to = to.data + some.column(p);
      f.to_stride = to.stride;
      f.to_row = to.row + some.row();
      f.add = true;
      f.weight = all == nullptr ? nullptr : weights;
      kernels_.finish(f);
    }
  });
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

bool has_int16(const MatrixShape& shape, const Scheme& scheme, LineIsa isa) {
  return !scheme.activation &&
         LinePass::serves(shape, scheme, {LineArithmetic::kInt16, true}, line_set(isa).kernels);
}

KernelPlan plan_lines(const KernelRequest& request, LineArithmetic arithmetic, LineIsa isa,
                      int threads) {
  const MatrixShape& shape = request.shape;
  const auto& key = request.scheme.activation;
  const LineKernels& kernels = line_set(isa).kernels;
  const LineForm main = main_form(request, arithmetic, kernels);
  const std::optional<LineForm> few = few_form(request, main, kernels);
  KernelPlan plan;
  const auto add = [&](const LineForm& line, const KernelRange& range) {
    plan.kernels.push_back(
        {CpuLineForm{isa, line, shape.key.dtype, instruction_of(line, kernels)}, range});
  };
  int64_t from_rows = 1;
  if (few) {
    const int few_rows = few_rows_of(main, *few, kernels);
    add(*few, {.to_rows = few_rows});
    from_rows = few_rows + 1;
  }
  add(main, {.from_tokens = (from_rows + request.expert_rows - 1) / request.expert_rows,
             .from_rows = from_rows});
  plan.deterministic = !few || arithmetic == LineArithmetic::kInt8;
  plan.input_dtype = as_codes(request.scheme, arithmetic) ? key->dtype : DType::kF32;
  const RowForm form = row_form(shape, request.scheme, plan.kernels, kernels);
  plan.product_bits = product_bits(main, request.scheme);
  if (arithmetic == LineArithmetic::kInt16) plan.product_group = form.unit;
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
                                                  Device& device) {
  auto* cpu = dynamic_cast<CpuDevice*>(&device);
  if (cpu == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "kernels of lines", "the cpu device",
                 "it is " + device.name()};
  }
  const LineSet& set = line_set(std::get<CpuLineForm>(plan.kernels.back().form).isa);
  MORACLE_CHECK(check_isa(set.needs));
  auto linear = std::make_unique<GroupedLinear>(std::move(weights));
  MORACLE_CHECK(linear->add<LineLinear>(plan, set.kernels, *cpu).reserve(plan));
  return linear;
}

}  // namespace moracle::cpu

#endif
