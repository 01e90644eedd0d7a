// A table of invented rows, so that every rule rejects some row.
#pragma once

#include <array>
#include <vector>

#include "kernels/grouped_linear.h"
#include "layout/layout.h"
#include "oracle/backend.h"

namespace moracle {

namespace fake {

inline constexpr DType kAllWeights[] = {DType::kBF16, DType::kF16,    DType::kF32,   DType::kI8,
                                        DType::kI4,   DType::kF8E4M3, DType::kF4E2M1};
inline constexpr DType kAllActivations[] = {DType::kI8, DType::kF8E4M3};
inline constexpr DType kInt8[] = {DType::kI8};
inline constexpr DType kBF16[] = {DType::kBF16};

/// Kernels for planning. The oracle never runs kernels.
inline KernelPlan plan(const KernelRequest& request, const Machine&) {
  const auto& key = request.scheme.activation;
  return KernelPlan{key ? key->dtype : DType::kF32,
                    {{NamedKernel{"few"}, {1, 16}}, {NamedKernel{"many"}, {17}}},
                    1000};
}
inline Result<std::unique_ptr<GroupedLinear>> make(KernelWeights&&, const KernelPlan&, Device&) {
  return Error{ErrorKind::kUnsupported, "", "fake row", "to be made", "it never is"};
}
inline const Kernels kKernels = {plan, make};
/// Kernels of another build.
inline const Kernels kElsewhere = {plan, nullptr};

/// Ordered from the row with most limits to the row without limits.
inline std::array<Backend, 4> table() {
  return {{{.name = "fake-amx",
            .summary = "bf16 only, not in this build",
            .isa = Isa::kAmxBf16 | Isa::kAvx512,
            .weights = kBF16,
            .group_multiple = 16,
            .layout = &kVnni16Layout},
           {.name = "fake-cuda",
            .platform = Platform::kCuda,
            .summary = "int8 on a GPU",
            .weights = kInt8,
            .activations = kInt8,
            .features = Feature::kBias,
            .group_multiple = 32,
            .layout = &kVnni16Layout,
            .kernels = &kKernels},
           {.name = "fake-avx512",
            .summary = "weight-only, symmetric",
            .isa = Isa::kAvx512,
            .weights = kAllWeights,
            .group_multiple = 64,
            .layout = &kVnni16Layout,
            .kernels = &kKernels},
           {.name = "fake-all",
            .summary = "everything",
            .weights = kAllWeights,
            .activations = kAllActivations,
            .features = static_cast<Feature>(0xff),
            .layout = &kCanonicalLayout,
            .kernels = &kKernels}}};
}

/// A plain layer of the scheme; num_experts x hidden x intermediate of the model in the box.
inline LayerSpec layer(const Scheme& scheme) {
  return {.name = "layers.0.experts",
          .num_experts = 16,
          .hidden_size = 256,
          .intermediate_size = 128,
          .top_k = 4,
          .scheme = scheme};
}
inline LayerSpec layer(const QuantKey& weight) {
  return layer(Scheme{weight, {}});
}

inline const Verdict* verdict(const Selection& selection, std::string_view name) {
  for (const Verdict& verdict : selection.considered) {
    if (verdict.backend->name == name) return &verdict;
  }
  return nullptr;
}

}  // namespace fake
}  // namespace moracle
