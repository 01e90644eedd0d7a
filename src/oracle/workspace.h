// Places all intermediate buffers between a layer's input and output. The same function runs
// without memory for the plan's size and with memory for apply's addresses, so both agree.
#pragma once

#include "moracle/oracle.h"
#include "quant/rows.h"

namespace moracle {

struct MoeScratch {
  Matrix hidden;  ///< activations in the plan's dtype, if the caller's dtype differs
  Rows input;
  RowPlan rows;
  Matrix gate_up;  ///< no rows if GEMM 1 applies the activation
  Matrix activated;
  Rows intermediate;
  Rows sorted_input, sorted_intermediate;  ///< no rows if gathers() returns false
  Matrix y;                                ///< every row; or every token, if GEMM 2 adds the rows
  size_t bytes = 0;
};
/// `base` may be null: then only `bytes` is valid.
MoeScratch carve_moe(const Plan& plan, std::byte* base);

/// The memory of a layer's adapters: for each matrix, all A of all adapters, then all B (see
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

/// True if an act-order matrix is packed with sorted columns. Then its activations must be gathered
/// in that order.
bool gathers(const Plan& plan, const MatrixPlan& matrix);

/// Stored activation scales belong to experts, so rows are quantized after they are grouped.
inline bool is_static(const Scheme& scheme) {
  return scheme.activation && !scheme.activation->dynamic;
}

}  // namespace moracle
