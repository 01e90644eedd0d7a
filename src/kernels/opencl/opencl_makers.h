// Factories of the OpenCL backends. They are null in builds without OpenCL, which only plan.
#pragma once

#include "kernels/grouped_linear.h"
#include "oracle/kernel_plan.h"

namespace moracle::opencl {

using MakeKernels = decltype(Kernels::make);

#if defined(MORACLE_WITH_OPENCL)
Result<std::unique_ptr<GroupedLinear>> make_reference(KernelWeights&& weights,
                                                      const KernelPlan& plan, Device& device);
Result<std::unique_ptr<GroupedLinear>> make_simt(KernelWeights&& weights, const KernelPlan& plan,
                                                 Device& device);
Result<std::unique_ptr<GroupedLinear>> make_vectors(KernelWeights&& weights, const KernelPlan& plan,
                                                    Device& device);
Result<std::unique_ptr<GroupedLinear>> make_matrix(KernelWeights&& weights, const KernelPlan& plan,
                                                   Device& device);
Result<std::unique_ptr<GroupedLinear>> make_matrix_wide(KernelWeights&& weights,
                                                        const KernelPlan& plan, Device& device);
inline constexpr MakeKernels kMakeReference = make_reference, kMakeSimt = make_simt,
                             kMakeVectors = make_vectors, kMakeMatrix = make_matrix,
                             kMakeMatrixWide = make_matrix_wide;
#else
inline constexpr MakeKernels kMakeReference = nullptr, kMakeSimt = nullptr, kMakeVectors = nullptr,
                             kMakeMatrix = nullptr, kMakeMatrixWide = nullptr;
#endif

}  // namespace moracle::opencl
