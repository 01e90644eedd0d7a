// The experts of a layer by GEMV: GEMM 1 with the activation, then GEMM 2 with the weighted sum.
// Quantized activations take one kernel before each. More tokens, or a wide GEMM 2, need a
// `combine` kernel at the end.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/gemv/gemv_launch.h"
#include "kernels/cuda/operands/scaling_plan.h"
#include "kernels/cuda/ops/quantize_vectors.h"
#include "quant/activation.h"

namespace moracle::cuda {
namespace {

class GemvExperts : public FusedExperts {
 public:
  GemvExperts(const KernelWeights& w13, const KernelWeights& w2, GemvLaunch first,
              GemvLaunch second, const Plan& plan, int64_t most_tokens, CudaDevice& device)
      : w13_(w13),
        w2_(w2),
        key_(product_scheme(w13.shape, w13.scheme).activation),
        first_(first),
        second_(second),
        activation_(plan.layer.activation),
        top_k_(plan.layer.top_k),
        num_experts_(plan.layer.num_experts),
        num_local_(plan.experts.num_local()),
        most_tokens_(most_tokens),
        device_(device) {}

  bool serves(int64_t num_tokens) const override { return num_tokens <= most_tokens_; }
  Status run(const ExpertsCall& call, const int32_t* expert_map, const MoeScratch& scratch,
             Stream stream) override {
    const Matrix& hidden = call.input.values;
    const int64_t tokens = hidden.rows, num_slots = tokens * top_k_;
    GemvSlots slots{call.topk_ids,
                    expert_map,
                    call.topk_weights,
                    static_cast<int>(num_slots),
                    static_cast<int>(tokens),
                    static_cast<int>(top_k_),
                    static_cast<int>(num_experts_),
                    static_cast<int>(num_local_),
                    scratch.rows.slot_row,
                    device_.device_errors().cell(DeviceErrorKind::kIds)};
    const int choice = gemv_choice(tokens, top_k_, num_local_);
    MORACLE_TRY(const Rows x, prepared(hidden, scratch.input, Overlap::kNone, stream));
    const Matrix h = scratch.activated.slice(0, num_slots);
    // A kernel that prepared x waited for the ids before it let GEMM 1 start.
    MORACLE_CHECK(
        first_.run_rows(w13_, x, true, h, &activation_, slots, choice, !is_ready(hidden), stream));
    // GEMM 2 may start before the rows are complete, because its ids are.
    MORACLE_TRY(const Rows intermediate, prepared(h, scratch.intermediate, Overlap::kNext, stream));
    slots.slot_row = nullptr, slots.id_errors = nullptr;
    if (!call.add && gemv_combines(tokens, top_k_, w2_.shape.n))
      return second_.run_tokens(w2_, intermediate, call.output, slots, stream);
    const Matrix y = scratch.y.slice(0, num_slots);
    MORACLE_CHECK(
        second_.run_rows(w2_, intermediate, false, y, nullptr, slots, choice, true, stream));
    if (call.add) return call.add({y, scratch.rows.slot_row, call.topk_weights, tokens, top_k_});
    return device_.ops().combine(y, scratch.rows.slot_row, call.topk_weights, top_k_, call.output,
                                 stream);
  }

 private:
  // True if a GEMM reads the rows as they are: activations in floats, in whole 16-byte loads.
  bool is_ready(const Matrix& x) const {
    return !key_ && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0 &&
           x.cols % 16 == 0;
  }
  // Quantizes rows if the scheme says so. Otherwise copies rows that are not ready.
  Result<Rows> prepared(const Matrix& x, const Rows& scratch_rows, Overlap overlap,
                        Stream stream) const {
    Rows to = scratch_rows.first(x.rows);
    if (key_) {
      to.num_scales = num_groups(*key_, x.cols);
      if (in_vectors(x, *key_, to)) {
        MORACLE_CHECK(
            quantize_vectors(device_.queue(), x, *key_, to, CodeOrder::kNatural, stream, overlap));
      } else {
        MORACLE_CHECK(device_.ops().quantize(x, *key_, to, stream));
      }
      return to;
    }
    if (is_ready(x)) return Rows{x, nullptr, 0};
    MORACLE_CHECK(device_.ops().convert(x, to.values, stream));
    return to;
  }

  const KernelWeights &w13_, &w2_;
  std::optional<QuantKey> key_;  // of activations; none: floats
  GemvLaunch first_, second_;
  ActivationSpec activation_;
  int64_t top_k_, num_experts_, num_local_, most_tokens_;
  CudaDevice& device_;
};

}  // namespace

Result<std::unique_ptr<FusedExperts>> make_gemv_experts(const GroupedLinear& w13,
                                                        const GroupedLinear& w2, const Plan& plan,
                                                        int64_t most_tokens, CudaDevice& device) {
  MORACLE_TRY(const GemvLaunch first, GemvLaunch::make(w13.weights(), device.queue()));
  MORACLE_TRY(const GemvLaunch second, GemvLaunch::make(w2.weights(), device.queue()));
  return std::unique_ptr<FusedExperts>(
      new GemvExperts(w13.weights(), w2.weights(), first, second, plan, most_tokens, device));
}

}  // namespace moracle::cuda
