// Checks the LoRA adapters of one layer on the host, then uploads them to the memory that add_lora
// reads.
#include <algorithm>

#include "base/scalar.h"
#include "base/text.h"
#include "base/try.h"
#include "moe/fused_moe_state.h"
#include "moe/layer_lock.h"

namespace moracle {
namespace {

// One matrix of the layer that an adapter may change.
struct Target {
  const char* name;
  const std::vector<LoraPair>& pairs;
  bool is_w13;
  int64_t slice;  // within w13: gate comes before up
  int64_t rows, cols;
};

std::vector<Target> targets(const LayerSpec& layer, const LoraWeights& adapter) {
  const int64_t hidden = layer.hidden_size, intermediate = layer.intermediate_size;
  const bool gated = is_gated(layer.activation.function);
  std::vector<Target> all;
  all.push_back({"gate", adapter.gate, true, 0, gated ? intermediate : 0, hidden});
  all.push_back({"up", adapter.up, true, gated ? 1 : 0, intermediate, hidden});
  all.push_back({"down", adapter.down, false, 0, hidden, intermediate});
  return all;
}

Status check_target(const Target& target, const Plan& plan) {
  auto wrong = [&](size_t e, std::string need, std::string fact) {
    return Error{ErrorKind::kInvalidArgument, "",
                 str("adapter of ", plan.layer.name, ".", e, ", ", target.name), std::move(need),
                 std::move(fact)};
  };
  if (!target.pairs.empty() && target.rows == 0)
    return wrong(0, "no adapter, because the experts have no gate", "an adapter is given");
  if (!target.pairs.empty() &&
      static_cast<int64_t>(target.pairs.size()) != plan.layer.num_experts) {
    return wrong(0, str("one adapter for each of ", plan.layer.num_experts, " experts"),
                 str("there are ", target.pairs.size()));
  }
  for (size_t e = 0; e < target.pairs.size(); ++e) {
    const LoraPair& pair = target.pairs[e];
    if (pair.rank < 0 || pair.rank > plan.lora_rank)
      return wrong(e, str("a rank of at most ", plan.lora_rank, ", as planned"),
                   str("it is ", pair.rank));
    const auto a = static_cast<int64_t>(pair.a.size()), b = static_cast<int64_t>(pair.b.size());
    if (a != pair.rank * target.cols || b != pair.rank * target.rows) {
      return wrong(
          e,
          str("A [", pair.rank, ", ", target.cols, "] and B [", target.rows, ", ", pair.rank, "]"),
          str("they have ", a, " and ", b, " elements"));
    }
  }
  return {};
}

// A matrix on the host, in the dtype of the device's copy.
class Staging {
 public:
  Staging(int64_t rows, int64_t cols, DType dtype)
      : cols_(cols), dtype_(dtype), bytes_(rows * cols * bits(dtype) / 8) {}
  void set(int64_t row, int64_t col, float value) {
    const int64_t at = row * cols_ + col;
    if (dtype_ == DType::kF32)
      reinterpret_cast<float*>(bytes_.data())[at] = value;
    else
      reinterpret_cast<uint16_t*>(bytes_.data())[at] = float_to_bf16(value);
  }
  Status upload(const Matrix& to, int64_t first_row, Device& device) const {
    auto* to_rows = static_cast<std::byte*>(to.data) + first_row * cols_ * bits(dtype_) / 8;
    return device.upload(to_rows, bytes_.data(), bytes_.size());
  }

 private:
  int64_t cols_;
  DType dtype_;
  std::vector<std::byte> bytes_;
};

}  // namespace

Status FusedMoe::set_adapter(int32_t id, const LoraWeights& adapter) {
  const Plan& plan = state_->plan;
  if (id < 0 || id >= plan.max_adapters) {
    return Error{ErrorKind::kInvalidArgument, "", "adapter of " + plan.layer.name,
                 str("an adapter id from 0 to ", plan.max_adapters - 1, ", as planned"),
                 str("it is ", id)};
  }
  const std::vector<Target> all = targets(plan.layer, adapter);
  for (const Target& target : all) MORACLE_CHECK(check_target(target, plan));

  // Uploads use the device's own stream.
  MORACLE_TRY(const LayerLock lock, LayerLock::take(*state_->workspace, {}));
  Device& device = state_->device();
  const AdapterScratch& scratch = state_->adapters;
  const int64_t rank = plan.lora_rank, here = plan.experts.num_local();
  const int64_t slices = plan.layer.w13_rows() / plan.layer.intermediate_size;
  for (int64_t local = 0; local < here; ++local) {
    const int64_t pair = id * here + local;
    const int32_t e = plan.experts.global()[local];
    for (const bool is_w13 : {true, false}) {
      const Matrix &a = is_w13 ? scratch.w13_a : scratch.w2_a,
                   &b = is_w13 ? scratch.w13_b : scratch.w2_b;
      const int64_t a_rows = (is_w13 ? slices : 1) * rank;
      const int64_t b_rows = is_w13 ? plan.layer.w13_rows() : plan.layer.hidden_size;
      Staging to_a(a_rows, a.cols, a.dtype), to_b(b_rows, b.cols, b.dtype);
      for (const Target& target : all) {
        if (target.is_w13 != is_w13 || target.pairs.empty()) continue;
        const LoraPair& from = target.pairs[e];
        for (int64_t j = 0; j < from.rank; ++j) {
          for (int64_t k = 0; k < target.cols; ++k)
            to_a.set(target.slice * rank + j, k, from.a[j * target.cols + k]);
          for (int64_t n = 0; n < target.rows; ++n)
            to_b.set(target.slice * target.rows + n, j, from.b[n * from.rank + j] * from.scale);
        }
      }
      MORACLE_CHECK(to_a.upload(a, pair * a_rows, device));
      MORACLE_CHECK(to_b.upload(b, pair * b_rows, device));
      MORACLE_CHECK(device.synchronize());
    }
  }
  return {};
}

Status FusedMoe::clear_adapter(int32_t id) {
  return set_adapter(id, LoraWeights());
}

}  // namespace moracle
