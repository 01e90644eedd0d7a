// Factories of the CUDA backends. They are null in builds without CUDA, which only plan.
#pragma once

#include "kernels/grouped_linear.h"
#include "oracle/kernel_plan.h"

namespace moracle::cuda {

using MakeKernels = decltype(Kernels::make);

#if defined(MORACLE_WITH_CUDA)
Result<std::unique_ptr<GroupedLinear>> make_sm80(KernelWeights&& weights, const KernelPlan& plan,
                                                 Device& device);
Result<std::unique_ptr<GroupedLinear>> make_sm90(KernelWeights&& weights, const KernelPlan& plan,
                                                 Device& device);
Result<std::vector<std::unique_ptr<FusedExperts>>> make_sm90_experts(const GroupedLinear& w13,
                                                                     const GroupedLinear& w2,
                                                                     const Plan& plan,
                                                                     Device& device);
Result<std::unique_ptr<GroupedLinear>> make_f32(KernelWeights&& weights, const KernelPlan& plan,
                                                Device& device);
Result<std::unique_ptr<GroupedLinear>> make_reference(KernelWeights&& weights,
                                                      const KernelPlan& plan, Device& device);
inline constexpr MakeKernels kMakeSm80 = make_sm80, kMakeF32 = make_f32,
                             kMakeReference = make_reference;
#else
inline constexpr MakeKernels kMakeSm80 = nullptr, kMakeF32 = nullptr, kMakeReference = nullptr;
#endif
#if defined(MORACLE_WITH_CUBLASLT)
Result<std::unique_ptr<GroupedLinear>> make_cublaslt(KernelWeights&& weights,
                                                     const KernelPlan& plan, Device& device);
inline constexpr MakeKernels kMakeCublasLt = make_cublaslt;
#else
inline constexpr MakeKernels kMakeCublasLt = nullptr;
#endif

}  // namespace moracle::cuda
