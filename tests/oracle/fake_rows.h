// A table of rows that no machine has, so that every rule has something to refuse.
#pragma once

#include <array>

#include "layout/layout.h"
#include "moracle/oracle.h"

namespace moracle {

namespace fake {

inline constexpr DType kAllWeights[] = {DType::kBF16, DType::kF16,    DType::kF32,   DType::kI8,
                                        DType::kI4,   DType::kF8E4M3, DType::kF4E2M1};
inline constexpr DType kAllActivations[] = {DType::kI8, DType::kF8E4M3};
inline constexpr DType kInt8[] = {DType::kI8};
inline constexpr DType kBF16[] = {DType::kBF16};

/// A maker, never called: the oracle only asks whether there is one.
inline Maker some_maker() {
  return backends().back().make;
}

/// From the pickiest to one that takes everything.
inline std::array<Backend, 4> table() {
  return {{{.name = "fake-amx",
            .summary = "bf16 only, not in this build",
            .isa = Isa::kAmxBf16 | Isa::kAvx512,
            .weights = kBF16,
            .group_multiple = 16,
            .layout = &kPanel16Layout},
           {.name = "fake-cuda",
            .platform = Platform::kCuda,
            .summary = "int8 on a GPU",
            .weights = kInt8,
            .activations = kInt8,
            .bias = true,
            .group_multiple = 32,
            .layout = &kPanel16Layout,
            .make = some_maker()},
           {.name = "fake-avx512",
            .summary = "weight-only, symmetric",
            .isa = Isa::kAvx512,
            .weights = kAllWeights,
            .group_multiple = 64,
            .layout = &kPanel16Layout,
            .make = some_maker()},
           {.name = "fake-all",
            .summary = "everything",
            .weights = kAllWeights,
            .activations = kAllActivations,
            .zero_points = true,
            .group_index = true,
            .bias = true,
            .layout = &kCanonicalLayout,
            .make = some_maker()}}};
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
