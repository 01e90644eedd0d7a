// The grouped GEMM of the CPU: packs rows, multiplies them by the panels of their experts, and
// finishes them. schedule.h splits the work over threads.
#include <algorithm>
#include <cstring>
#include <optional>

#include "base/try.h"
#include "kernels/check_ops.h"
#include "kernels/cpu/device/cpu_device.h"
#include "kernels/cpu/gemm/plan.h"
#include "kernels/cpu/gemm/schedule.h"
#include "kernels/cpu/ops/quantize_row.h"
#include "kernels/cpu/simd/vector_ops.h"

namespace moracle::cpu {
namespace {

class CpuGemm : public LinearKernel {
 public:
  CpuGemm(const KernelWeights& weights, const KernelPlan& plan, const UkernelSet& kernels,
          CpuDevice& device)
      : weights_(weights),
        kernels_(kernels),
        device_(device),
        activates_(plan.activates),
        quantizes_(plan.quantizes),
        main_(weights_, std::get<CpuDotForm>(plan.kernels.back().form), kernels),
        form_(row_form(weights_.shape, weights_.scheme, plan.kernels, kernels)),
        claims_(pairs().count()) {
    if (plan.kernels.size() > 1)
      skinny_.emplace(weights_, std::get<CpuDotForm>(plan.kernels.front().form), kernels);
  }

  /// Reserves the plan's scratch, or more if the device has more threads than the plan assumed.
  Status reserve(const KernelPlan& plan) {
    int64_t bytes = plan.scratch_bytes;
    if (plan.activates)
      bytes = std::max(bytes, device_.pool().size() * Schedule::item_bytes(form_));
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
    const int64_t panels = main_.panels().num_panels();
    return {panels, gated ? panels / 2 : 0};
  }
  /// Threads own columns.
  template <class Finish>
  void run_columns(const GroupedRows& rows, const PanelPairs& pairs, const Destination& to,
                   const Finish& finish);
  void store(const GroupedRows& rows, const Matrix& y);
  /// Calls done(r, row) for each finished row r unless that is null. `out` then is scratch.
  template <class Done>
  Status activate(const GroupedRows& rows, const ActivationSpec& activation, const Matrix& out,
                  const Done& done);
  void combine(const GroupedRows& rows, const LinearCall::Combine& combination, const Matrix& out);

  const KernelWeights& weights_;
  const UkernelSet& kernels_;
  CpuDevice& device_;
  const bool activates_, quantizes_;
  MacroKernel main_;
  std::optional<MacroKernel> skinny_;  // for experts with few rows
  RowForm form_;
  PairClaims claims_;  // of one call at a time
};

template <class Finish>
void CpuGemm::run_columns(const GroupedRows& given, const PanelPairs& pairs, const Destination& to,
                          const Finish& finish) {
  const ExpertRows rows(given, weights_.num_experts);
  if (rows.count() == 0) return;
  const RowPacker packer(form_, given, kernels_);
  Schedule(main_, skinny_, kernels_, form_, rows, pairs, to)
      .by_columns(packer, device_.scratch(), device_.pool(), claims_, finish);
}

Status CpuGemm::run(const LinearCall& call, Stream) {
  const GroupedRows& rows = *call.from<GroupedRows>();
  if (const auto* const to = call.to<LinearCall::Activate>())
    return activate(rows, to->activation, call.out, nullptr);
  if (const auto* const to = call.to<LinearCall::Quantize>()) {
    return activate(rows, to->activation, call.out, [&](int64_t r, const float* row) {
      quantize_row(vector_ops(), to->key, row, call.out.cols, to->codes, r);
    });
  }
  if (const auto* const to = call.to<LinearCall::Combine>())
    combine(rows, *to, call.out);
  else
    store(rows, call.out);
  return {};
}

void CpuGemm::store(const GroupedRows& rows, const Matrix& y) {
  const Destination to{static_cast<float*>(y.data), y.stride};
  run_columns(rows, pairs(), to, StoreEpilogue{to});
}

template <class Done>
Status CpuGemm::activate(const GroupedRows& given, const ActivationSpec& activation,
                         const Matrix& out, const Done& done) {
  MORACLE_CHECK(check_activation(activation));
  constexpr bool kKeepsRows = std::is_same_v<Done, std::nullptr_t>;
  const bool gated = is_gated(activation.function);
  const ExpertRows rows(given, weights_.num_experts);
  const PanelPairs pairs = this->pairs(gated);
  const Destination all{static_cast<float*>(out.data), out.stride};
  ThreadPool& pool = device_.pool();
  const RowPacker packer(form_, given, kernels_);
  const auto finish_at = [&](const Destination& to) {
    return ActivateEpilogue{to, activation, gated, out.cols};
  };
  const auto finished = [&](const RowItem& item, const Destination& to) {
    if constexpr (!kKeepsRows) {
      for (int64_t r = item.first; r < item.past; ++r) done(r, to.at(r));
    }
  };
  Schedule schedule(main_, skinny_, kernels_, form_, rows, pairs, all);
  if (rows.count() == 0) return {};
  if (schedule.rows_are_better(static_cast<int64_t>(weights_.sections.bytes), pool)) {
    schedule.by_rows(packer, device_.scratch(), pool, finish_at, kKeepsRows, finished);
  } else {
    schedule.by_columns(packer, device_.scratch(), pool, claims_, finish_at(all));
    pool.split(rows.count(), [&](int64_t first, int64_t past) {
      finished(RowItem{0, first, past}, all);
    });
  }
  return {};
}

void CpuGemm::combine(const GroupedRows& rows, const LinearCall::Combine& combination,
                      const Matrix& out) {
  if (!combination.add) {
    device_.pool().split(out.rows, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t)
        std::memset(static_cast<float*>(out.data) + t * out.stride, 0, out.cols * sizeof(float));
    });
  }
  const Destination to{static_cast<float*>(out.data), out.stride,
                       combination.row_token + rows.first_row};
  run_columns(rows, pairs(), to,
              CombineEpilogue{to, combination.weights, combination.row_slot + rows.first_row});
}

}  // namespace

Result<std::unique_ptr<GroupedLinear>> make_gemm(KernelWeights&& weights, const KernelPlan& plan,
                                                 Device& device) {
  auto* cpu = dynamic_cast<CpuDevice*>(&device);
  if (cpu == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "a GEMM of the CPU", "the cpu device",
                 "it is " + device.name()};
  }
  const UkernelSet& kernels = ukernels(std::get<CpuDotForm>(plan.kernels.back().form).isa);
  MORACLE_CHECK(check_isa(kernels.needs));
  auto linear = std::make_unique<GroupedLinear>(std::move(weights));
  MORACLE_CHECK(linear->add<CpuGemm>(plan, kernels, *cpu).reserve(plan));
  return linear;
}

}  // namespace moracle::cpu
