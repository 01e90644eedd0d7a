// Where everything between a layer's input and output lies. The same walk with and without memory,
// so that the size in the plan and the addresses in apply cannot disagree.
#pragma once

#include "moracle/oracle.h"
#include "quant/rows.h"

namespace moracle {

struct MoeScratch {
  Matrix hidden;  ///< activations of the plan's dtype, where the caller's are of another
  Rows input;
  RowPlan rows;
  Matrix gate_up;  ///< no rows where GEMM 1 applies the activation
  Matrix activated;
  Rows intermediate;
  Rows sorted_input, sorted_intermediate;  ///< no rows where gathers() says no
  Matrix y;  ///< of every row; of every token where GEMM 2 adds them up
  size_t bytes = 0;
};
/// `base` may be null: then only `bytes` means something.
MoeScratch carve_moe(const Plan& plan, std::byte* base);

/// Where the adapters of a layer lie: per matrix, all adapters' A, then all their B (see
/// LoraTable).
struct AdapterScratch {
  Matrix w13_a, w13_b, w2_a, w2_b;
  size_t bytes = 0;
};
AdapterScratch carve_adapters(const Plan& plan, std::byte* base);

struct LinearScratch {
  Rows input;
  Rows sorted_input;
  size_t bytes = 0;
};
LinearScratch carve_linear(const Plan& plan, std::byte* base);

/// Whether a matrix in act-order is packed with sorted columns, so that its activations have to be
/// gathered in that order.
bool gathers(const Plan& plan, const MatrixPlan& matrix);

/// Stored activation scales belong to experts, so rows are quantized after they have been grouped.
inline bool is_static(const Scheme& scheme) {
  return scheme.activation && !scheme.activation->dynamic;
}

}  // namespace moracle
