// One walk for every way of multiplying. Each thread takes the same share of every expert's panels,
// two at a time: even work whatever the routing, no barrier between experts, and columns of the
// result that are its own, so that it may add up a token's rows itself.

#if defined(__x86_64__)

#include "kernels/cpu/line_linear.h"

#include <xmmintrin.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/text.h"
#include "base/try.h"
#include "kernels/check_ops.h"
#include "kernels/cpu/line_pass.h"
#include "kernels/cpu/vector_ops.h"
#include "quant/activation.h"

namespace moracle::cpu {
namespace {

// Rows in each pass of so many: whole blocks, no short one at the end.
int64_t even_pass(int64_t rows) {
  const int64_t passes = (rows + kPassRows - 1) / kPassRows;
  const int64_t even = (rows + passes - 1) / passes;
  return (even + kMaxBlockRows - 1) / kMaxBlockRows * kMaxBlockRows;
}

// How rows meet a matrix: floats of 16 bits as they lie where that is a kernel's way.
LineForm main_form(const MatrixShape& shape, const Scheme& scheme, Arithmetic arithmetic,
                   const LineKernels& kernels) {
  const LineForm by_codes{arithmetic, true};
  const bool floats = arithmetic == Arithmetic::kF32 && !shape.key.quantized();
  return floats && LinePass::serves(shape, scheme, by_codes, kernels) ? by_codes
                                                                      : LineForm{arithmetic};
}

// How a few rows meet codes: integers as such, where the rows come as integers; else in f32.
LineForm few_form(const Scheme& scheme, Arithmetic arithmetic) {
  const bool integers = scheme.activation == kInt8DynamicTokenSym && arithmetic != Arithmetic::kF32;
  return {integers ? Arithmetic::kInt8 : Arithmetic::kF32, true};
}

// Where a token's bits may depend on nothing but the token, there is one arithmetic.
bool few_by_codes(const MatrixShape& shape, const Scheme& scheme, Arithmetic arithmetic,
                  const LineKernels& kernels, bool deterministic) {
  const LineForm few = few_form(scheme, arithmetic);
  const bool same_bits = arithmetic == Arithmetic::kInt8;
  return (same_bits || !deterministic) && shape.key.quantized() &&
         LinePass::serves(shape, scheme, few, kernels);
}

// Floats in bf16: in two parts.
RowForm row_form(const MatrixShape& shape, const Scheme& scheme, Arithmetic arithmetic,
                 const LineKernels& kernels, bool few_by_codes) {
  RowForm form;
  form.arithmetic = arithmetic;
  form.two_parts = arithmetic == Arithmetic::kBf16 && !scheme.activation;
  form.few_rows = kernels.few_rows;
  form.few = few_by_codes ? few_form(scheme, arithmetic).arithmetic : arithmetic;
  form.order = shape.key.dtype == DType::kBF16 ? ColumnOrder::kPlain : kernels.decoders->order;
  form.k = shape.k;
  form.unit = unit_cols(shape, {form.few}, x_group_cols(scheme));
  return form;
}

/// Where the rows of a run end up: row r at data + (row ? row[r] : r) · stride.
struct Destination {
  float* data;
  int64_t stride;
  const int32_t* row = nullptr;

  float* at(int64_t r) const { return data + (row == nullptr ? r : row[r]) * stride; }
  /// Rows [first, end) from `column` on, a line or two of each: they lie far apart, and a store
  /// waits as long as a load.
  void ask(int64_t first, int64_t end, int64_t column, bool two_lines) const {
    for (int64_t r = first; r < end; ++r) {
      const auto* const line = reinterpret_cast<const char*>(at(r) + column);
      _mm_prefetch(line, _MM_HINT_T0);
      if (two_lines) _mm_prefetch(line + kLineBytes, _MM_HINT_T0);
    }
  }
};

/// A pass whose sums are ready, and `count` rows of it from `first` on.
struct Finished {
  const PanelPair& pair;
  const Pass& pass;
  LineResult results[2];  // of all rows
  int first = 0, count = 0;

  /// Of these rows, without a place.
  LineResult result(int p) const {
    LineResult f = results[p];
    f.sum += first * kLineRows;
    if (f.x_scale != nullptr) f.x_scale += first * f.x_scale_stride;
    f.rows = count;
    return f;
  }
  int64_t row() const { return pass.first + first; }
  int64_t column(int p) const { return (pair.panel + p * pair.distance) * kLineRows; }
};

class LineLinear : public GroupedLinear {
 public:
  LineLinear(KernelWeights weights, Arithmetic arithmetic, const LineKernels& kernels,
             bool deterministic, CpuDevice& device)
      : weights_(std::move(weights)),
        kernels_(kernels),
        device_(device),
        pass_(weights_, main_form(weights_.shape, weights_.scheme, arithmetic, kernels), kernels) {
    const bool codes =
        few_by_codes(weights_.shape, weights_.scheme, arithmetic, kernels, deterministic);
    if (codes) few_.emplace(weights_, few_form(weights_.scheme, arithmetic), kernels);
    form_ = row_form(weights_.shape, weights_.scheme, arithmetic, kernels, codes);
  }

  const KernelWeights& weights() const override { return weights_; }
  Status run(const GroupedRows& rows, const Matrix& y, Stream) override;
  Status run_activated(const GroupedRows& rows, const ActivationSpec& activation, const Matrix& out,
                       Stream) override;
  Status run_combined(const GroupedRows& rows, const Combination& combination, const Matrix& out,
                      Stream) override;

 private:
  template <class Finish>
  void walk(const GroupedRows& rows, int64_t pairs, int64_t distance, const Destination& to,
            const Finish& finish);

  KernelWeights weights_;
  const LineKernels& kernels_;
  CpuDevice& device_;
  LinePass pass_;
  std::optional<LinePass> few_;  // for experts with few rows
  RowForm form_;
};

// finish(some) takes what was computed `to` where it belongs. `distance` 0: pairs are neighbours.
template <class Finish>
void LineLinear::walk(const GroupedRows& rows, int64_t pairs, int64_t distance,
                      const Destination& to, const Finish& finish) {
  const int64_t panels = pass_.panels().num_panels();
  const int32_t one_expert[] = {0, static_cast<int32_t>(rows.num_rows)};
  const int32_t* offsets = rows.expert_offsets ? rows.expert_offsets : one_expert;
  const int64_t experts = weights_.num_experts;
  const int64_t begin = rows.first_row;
  const int64_t end = std::min<int64_t>(offsets[experts], begin + rows.num_rows);
  if (begin >= end) return;
  auto first_of = [&](int64_t expert) { return std::max<int64_t>(offsets[expert], begin); };
  auto past_of = [&](int64_t expert) { return std::min<int64_t>(offsets[expert + 1], end); };
  ThreadPool& pool = device_.pool();
  const PackedRows x =
      pack_rows(form_, rows, experts, end - begin, *kernels_.rows, device_.scratch(), pool);
  auto pair_of = [&](int64_t expert, int64_t pair) {
    if (distance > 0) return PanelPair{expert, pair, distance};
    return PanelPair{expert, 2 * pair, 2 * pair + 1 < panels ? 1 : 0};
  };
  auto after = [&](int64_t expert) {
    do ++expert;
    while (expert < experts && first_of(expert) >= past_of(expert));
    return expert;
  };
  pool.run([&](int thread) {
    const auto [first, last] = pool.piece(pairs, thread);
    if (first == last) return;
    if (kernels_.begin != nullptr) kernels_.begin();
    PassRoom room;
    for (int64_t e = after(-1); e < experts;) {
      const int64_t next_expert = after(e);
      const bool few = few_ && offsets[e + 1] - offsets[e] <= kernels_.few_rows;
      const LinePass& way = few ? *few_ : pass_;
      const int64_t pass_rows = even_pass(past_of(e) - first_of(e));
      for (int64_t i = first; i < last; ++i) {
        const PanelPair pair = pair_of(e, i);
        const bool more = i + 1 < last || next_expert < experts;
        const PanelPair next = i + 1 < last ? pair_of(e, i + 1) : pair_of(next_expert, first);
        for (int64_t row = first_of(e); row < past_of(e); row += pass_rows) {
          const int count = static_cast<int>(std::min(pass_rows, past_of(e) - row));
          const bool ask = more && row == first_of(e) && next.distance > 0;
          const Pass pass{x, row - begin, count, next, ask};
          const bool two_lines = distance == 0 && pair.distance > 0;
          auto ask_from = [&](int r) {
            to.ask(pass.first + r, pass.first + std::min(r + kResultRows, count),
                   pair.panel * kLineRows, two_lines);
          };
          ask_from(0);
          way.multiply(pair, pass, room);
          Finished some{pair, pass, {}};
          for (int p = 0; p < pair.panels(); ++p) some.results[p] = way.result(pair, p, pass, room);
          for (int r = 0; r < count; r += kResultRows) {
            ask_from(r + kResultRows);
            some.first = r;
            some.count = std::min(kResultRows, count - r);
            finish(some);
            if (kernels_.keep_awake != nullptr) kernels_.keep_awake();
          }
        }
      }
      e = next_expert;
    }
    if (kernels_.end != nullptr) kernels_.end();
  });
}

Status LineLinear::run(const GroupedRows& rows, const Matrix& y, Stream) {
  const Destination to{static_cast<float*>(y.data), y.stride};
  walk(rows, (pass_.panels().num_panels() + 1) / 2, 0, to, [&](const Finished& some) {
    for (int p = 0; p < some.pair.panels(); ++p) {
      LineResult f = some.result(p);
      f.to = to.at(some.row()) + some.column(p);
      f.to_stride = y.stride;
      kernels_.finish(f);
    }
  });
  return {};
}

Status LineLinear::run_activated(const GroupedRows& rows, const ActivationSpec& activation,
                                 const Matrix& out, Stream) {
  MORACLE_CHECK(check_activation(activation));
  const bool gated = is_gated(activation.function);
  const int64_t half = pass_.panels().num_panels() / 2;
  const auto args = activation_args(activation);
  const Destination to{static_cast<float*>(out.data), out.stride};
  walk(rows, gated ? half : (pass_.panels().num_panels() + 1) / 2, gated ? half : 0, to,
       [&](const Finished& some) {
         alignas(64) float values[2][kResultRows * kLineRows];
         for (int p = 0; p < some.pair.panels(); ++p) {
           LineResult f = some.result(p);
           f.to = values[p];
           f.to_stride = kLineRows;
           f.columns = kLineRows;
           kernels_.finish(f);
         }
         for (int p = 0; p < (gated ? 1 : some.pair.panels()); ++p) {
           vector_ops().activate(args, values[gated ? 0 : p], values[gated ? 1 : p],
                                 int64_t{some.count} * kLineRows, values[p]);
           LineResult f;
           f.sum = values[p];
           f.rows = some.count;
           f.columns = static_cast<int>(std::min<int64_t>(kLineRows, out.cols - some.column(p)));
           f.to = to.at(some.row()) + some.column(p);
           f.to_stride = out.stride;
           kernels_.finish(f);
         }
       });
  return {};
}

Status LineLinear::run_combined(const GroupedRows& rows, const Combination& combination,
                                const Matrix& out, Stream) {
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
  walk(rows, (pass_.panels().num_panels() + 1) / 2, 0, to, [&](const Finished& some) {
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
  return {};
}

}  // namespace

Arithmetic arithmetic_for(const MatrixShape& shape, const Scheme& scheme, bool bf16,
                          int64_t group_multiple) {
  const DType dtype = shape.key.dtype;
  const bool whole =
      vnni16::num_groups(shape) <= 1 || vnni16::group_cols(shape) % group_multiple == 0;
  if (scheme.activation == kInt8DynamicTokenSym && whole) return Arithmetic::kInt8;
  const bool exact = dtype != DType::kF16 && dtype != DType::kF32;
  return bf16 && exact ? Arithmetic::kBf16 : Arithmetic::kF32;
}

KernelPlan plan_lines(const KernelRequest& request, Arithmetic arithmetic,
                      const LineKernels& kernels) {
  const MatrixShape& shape = request.shape;
  const auto& key = request.scheme.activation;
  KernelPlan plan;
  const bool by_codes =
      few_by_codes(shape, request.scheme, arithmetic, kernels, request.deterministic);
  plan.deterministic = !by_codes || arithmetic == Arithmetic::kInt8;
  const bool codes =
      key && arithmetic != Arithmetic::kF32 && !vnni16::scale_is_exponent({0, 0, *key});
  plan.input_dtype = codes ? key->dtype : DType::kF32;
  RowForm form = row_form(shape, request.scheme, arithmetic, kernels, by_codes);
  if (form.two_parts) plan.product_bits = 16;
  const std::string_view type = name(shape.key.dtype);
  const bool integers = few_form(request.scheme, arithmetic).arithmetic == Arithmetic::kInt8;
  const char* const products[] = {
      "i8 x i8, exact sums",
      form.two_parts ? "products of two bf16 parts, f32 sums" : "bf16 products, f32 sums",
      "f32 products and sums"};
  plan.kernels = {{1, str(type, " lines, ", products[static_cast<int>(arithmetic)], ", ",
                          kernels.instructions[static_cast<int>(arithmetic)],
                          by_codes ? str("; experts with up to ", kernels.few_rows,
                                         " rows by codes in ", integers ? "int8" : "f32")
                                   : "")}};
  if (codes) form.num_scales = num_groups(*key, shape.k);
  plan.scratch_bytes = static_cast<int64_t>(packed_bytes(form, request.max_rows));
  if (request.activation != nullptr) {
    const bool gated = is_gated(request.activation->function);
    plan.activates = !gated || shape.n % (2 * kLineRows) == 0;
  }
  plan.combines = true;
  plan.in_parts = true;
  return plan;
}

Result<std::unique_ptr<GroupedLinear>> make_lines(KernelWeights&& weights, const KernelPlan& plan,
                                                  Arithmetic arithmetic, const LineKernels& kernels,
                                                  Device& device) {
  auto* cpu = dynamic_cast<CpuDevice*>(&device);
  if (cpu == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "kernels of lines", "the cpu device",
                 "it is " + device.name()};
  }
  MORACLE_CHECK(cpu->reserve_scratch(plan.scratch_bytes));
  return std::unique_ptr<GroupedLinear>(
      new LineLinear(std::move(weights), arithmetic, kernels, plan.deterministic, *cpu));
}

}  // namespace moracle::cpu

#endif
