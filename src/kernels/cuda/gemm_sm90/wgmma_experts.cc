// A layer's experts for many tokens: a plan of the rows, activations in fragment order or as codes,
// perhaps in the order of the rows, GEMM 1 with the activation, codes again, GEMM 2, and the
// weighted sum.
#include "base/text.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/gemm_sm90/scale_rows.h"
#include "kernels/cuda/gemm_sm90/wgmma_launch.h"
#include "kernels/cuda/gemm_sm90/wgmma_plan.h"
#include "kernels/cuda/operands/scaling_plan.h"
#include "kernels/cuda/ops/quantize_vectors.h"
#include "quant/activation.h"

namespace moracle::cuda {
namespace {

class WgmmaExperts : public FusedExperts {
 public:
  WgmmaExperts(const KernelWeights& w13, const KernelWeights& w2, WgmmaLaunch first,
               WgmmaLaunch second, const Plan& plan, int64_t least_tokens, CudaDevice& device)
      : w13_(w13),
        w2_(w2),
        scheme_(product_scheme(w13.shape, w13.scheme)),
        first_(first),
        second_(second),
        activation_(plan.layer.activation),
        top_k_(plan.layer.top_k),
        num_experts_(plan.layer.num_experts),
        num_local_(plan.experts.num_local()),
        least_tokens_(least_tokens),
        device_(device) {}

  bool serves(int64_t num_tokens) const override { return num_tokens >= least_tokens_; }
  Rows prepared_form(int64_t) const override {
    const auto& key = scheme_.activation;
    if (!key || input_of(w13_) != WgmmaInput::kCodes) return {};
    const int64_t cols = w13_.shape.k;
    return {{nullptr, key->dtype, 1, cols, cols}, nullptr, num_groups(*key, cols)};
  }
  Status prepare(const Matrix& x, int64_t, const Rows& to, Stream stream) override {
    if (!in_vectors(x, *scheme_.activation, to)) {
      return Error{ErrorKind::kInvalidArgument, "", "tokens that travel as codes",
                   "rows of bf16 that begin at multiples of 16 bytes",
                   str("they are ", name(x.dtype), " with stride ", x.stride)};
    }
    return quantize_vectors(device_.queue(), x, *scheme_.activation, to, wgmma_order(w13_), stream);
  }

  Status run(const ExpertsCall& call, const int32_t* expert_map, const MoeScratch& scratch,
             Stream stream) override {
    Ops& ops = device_.ops();
    const int64_t num_tokens = call.num_tokens(), num_rows = num_tokens * top_k_;
    const bool is_prepared = call.form == ExpertsCall::Input::kPrepared;
    const WgmmaKernel& kernel = first_.experts_kernel(w13_, num_rows);
    MORACLE_CHECK(ops.plan_rows(call.topk_ids, num_tokens, top_k_, num_experts_, expert_map,
                                num_local_, scratch.rows, stream));
    // The input is prepared while rows are planned, unless GEMM 1 needs the plan early.
    const Overlap overlap = kernel.loads_ahead ? Overlap::kNone : Overlap::kPrevious;
    const auto& key = scheme_.activation;
    Rows input = call.input;
    const bool ordered = !is_prepared && reads_ordered(scratch, num_rows);
    if (ordered) {
      MORACLE_TRY(input, in_order(call, expert_map, scratch, stream));
    } else if (!is_prepared) {
      MORACLE_TRY(input, prepared(call.input.values, scratch, overlap, stream));
    }
    const WgmmaInput form = input_of(w2_);
    const bool codes = key && form == WgmmaInput::kCodes;
    const Matrix h = scratch.activated.slice(0, num_rows);
    const bool quantized = kernel.quantizes && key->group.cols == 128;
    const bool by_group = quantized && second_.prefers_scales_by_group(w2_, num_rows);
    Rows intermediate{h, nullptr, 0};
    if (quantized) intermediate = scratch.intermediate.first(num_rows);
    // Scales by group need a few more rows. Codes leave the memory of h free, which has 64 times as
    // much as scales take.
    if (by_group) intermediate.scales = static_cast<float*>(h.data);
    MORACLE_CHECK(first_.run(
        w13_,
        {input, ordered ? nullptr : scratch.rows.row_token, scratch.rows.expert_offsets, num_rows},
        intermediate, &activation_, stream,
        {.y_fragments = !codes,
         .after_plan = is_prepared,
         .x_scales_by_group = ordered,
         .y_scales_by_group = by_group}));
    if (codes && !quantized) {
      intermediate = scratch.intermediate.first(num_rows);
      intermediate.num_scales = num_groups(*key, h.cols);
      MORACLE_CHECK(
          quantize_vectors(device_.queue(), h, *key, intermediate, wgmma_order(w2_), stream));
    } else if (key && form == WgmmaInput::kValues) {
      MORACLE_CHECK(  // fragment order keeps groups together
          round_to_codes(device_.queue(), h, *key, h, CodeOrder::kNatural, stream));
    } else if (key && !codes) {
      intermediate = {h, scratch.intermediate.scales, 1};
      MORACLE_CHECK(
          quantize_vectors(device_.queue(), h, *key, intermediate, CodeOrder::kNatural, stream));
    }
    const Matrix y = scratch.y.slice(0, num_rows);
    MORACLE_CHECK(second_.run(w2_, {intermediate, nullptr, scratch.rows.expert_offsets, num_rows},
                              {y, nullptr, 0}, nullptr, stream, {.x_scales_by_group = by_group}));
    if (call.add)
      return call.add({y, scratch.rows.slot_row, call.topk_weights, num_tokens, top_k_});
    return ops.combine(y, scratch.rows.slot_row, call.topk_weights, top_k_, call.output, stream);
  }

 private:
  WgmmaInput input_of(const KernelWeights& weights) const {
    return wgmma_input(weights.shape, scheme_);
  }
  // True if GEMM 1 reads rows in the order of experts. Their codes and scales lie in the memory of
  // y, which GEMM 2 writes.
  bool reads_ordered(const MoeScratch& scratch, int64_t num_rows) const {
    const auto& key = scheme_.activation;
    const int64_t cols = w13_.shape.k;
    return key && input_of(w13_) == WgmmaInput::kCodes && num_groups(*key, cols) > 1 &&
           first_.prefers_ordered_rows(w13_, num_rows, top_k_) && scratch.y.rows >= num_rows &&
           scratch.y.stride == cols &&
           scale_rows(num_rows, num_local_) * num_groups(*key, cols) * 4 <= num_rows * cols;
  }
  Result<Rows> in_order(const ExpertsCall& call, const int32_t* expert_map,
                        const MoeScratch& scratch, Stream stream) const {
    MORACLE_TRY(const Matrix x, in_whole_vectors(call.input.values, scratch, stream));
    const QuantKey& key = *scheme_.activation;
    const int64_t cols = x.cols, num_rows = x.rows * top_k_;
    auto* const codes = static_cast<std::byte*>(scratch.y.data);
    const Rows to{{codes, key.dtype, num_rows, cols, cols},
                  reinterpret_cast<float*>(codes + num_rows * cols),
                  num_groups(key, cols)};
    MORACLE_CHECK(quantize_ordered(
        device_.queue(), x, key, to,
        {scratch.rows.slot_row, call.topk_ids, expert_map, scratch.rows.expert_offsets,
         static_cast<int>(top_k_), num_local_, num_rows},
        stream));
    return to;
  }
  Result<Matrix> in_whole_vectors(const Matrix& x, const MoeScratch& scratch, Stream stream) const {
    if (reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0) return Matrix(x);
    const Matrix to = scratch.hidden.slice(0, x.rows);
    MORACLE_CHECK(device_.ops().convert(x, to, stream));
    return Matrix(to);
  }
  // Codes, or values or codes in bf16, in fragment order.
  Result<Rows> prepared(const Matrix& from, const MoeScratch& scratch, Overlap overlap,
                        Stream stream) const {
    MORACLE_TRY(const Matrix x, in_whole_vectors(from, scratch, stream));
    if (x.data != from.data) overlap = Overlap::kNone;
    const auto& key = scheme_.activation;
    Rows to = scratch.input.first(x.rows);
    if (!key) {
      MORACLE_CHECK(to_fragments(device_.queue(), x, to.values, stream, overlap));
    } else if (input_of(w13_) == WgmmaInput::kWideCodes) {
      to = Rows{scratch.hidden.slice(0, x.rows), scratch.input.scales, 1};
      MORACLE_CHECK(
          quantize_vectors(device_.queue(), x, *key, to, CodeOrder::kFragments, stream, overlap));
    } else if (input_of(w13_) == WgmmaInput::kValues) {
      to = Rows{scratch.hidden.slice(0, x.rows), nullptr, 0};
      MORACLE_CHECK(round_to_codes(device_.queue(), x, *key, to.values, CodeOrder::kFragments,
                                   stream, overlap));
    } else {
      to.num_scales = num_groups(*key, x.cols);
      MORACLE_CHECK(
          quantize_vectors(device_.queue(), x, *key, to, wgmma_order(w13_), stream, overlap));
    }
    return to;
  }

  const KernelWeights &w13_, &w2_;
  Scheme scheme_;  // in which the products run
  WgmmaLaunch first_, second_;
  ActivationSpec activation_;
  int64_t top_k_, num_experts_, num_local_, least_tokens_;
  CudaDevice& device_;
};

}  // namespace

Result<std::unique_ptr<FusedExperts>> make_wgmma_experts(const GroupedLinear& w13,
                                                         const GroupedLinear& w2, const Plan& plan,
                                                         int64_t least_tokens, CudaDevice& device) {
  MORACLE_TRY(const WgmmaLaunch first, WgmmaLaunch::make(w13.weights(), true, device.queue()));
  MORACLE_TRY(const WgmmaLaunch second, WgmmaLaunch::make(w2.weights(), false, device.queue()));
  return std::unique_ptr<FusedExperts>(
      new WgmmaExperts(w13.weights(), w2.weights(), first, second, plan, least_tokens, device));
}

}  // namespace moracle::cuda
