// Arguments of the GEMV kernels, which group the slots by themselves instead of reading a row plan.
#pragma once

#include "kernels/cuda/device/device_error.h"
#include "kernels/cuda/gemv/gemv_plan.h"
#include "kernels/cuda/tiles/arguments.h"
#include "kernels/ops.h"

namespace moracle::cuda {

/// The experts of each token. A slot is t · top_k + j, for expert j of token t.
struct GemvSlots {
  const int32_t* ids;         ///< [num_slots]; null: all are expert 0
  const int32_t* expert_map;  ///< [num_experts]; null: ids are local numbers
  const float* weights;       ///< [num_slots]; null: each is 1
  int num_slots, num_tokens, top_k, num_experts, num_local;
  int32_t* slot_row;           ///< written for `combine`: s, or -1 without an expert; null: not
  DeviceErrorCell* id_errors;  ///< null: another kernel of the call reports
};

/// Most tokens of a linear layer with the norm before it. Each CTA computes the norm of all rows.
inline constexpr int64_t kMostNormedTokens = 4;
/// Most columns of such a layer.
inline constexpr int64_t kMostNormedCols = 4096;

/// One matrix. Rows of x and y are slots, or tokens where the names say so.
struct GemvArgs {
  GemmArgs matrix;
  GemvSlots slots;
  bool x_of_tokens;  ///< row of x: the slot's token instead of the slot
  /// The ids were complete before the previous kernel started. The plan and the first copies of
  /// weights then do not wait for that kernel.
  bool ids_are_there;
  int cluster;      ///< CTAs that split K of a panel in gemv_combine: 1 or 2
  int stage_bytes;  ///< of the ring of one warp
  int stages;       ///< of a ring
  int scale_bytes;  ///< of a panel in a stage
  int zero_bytes;   ///< likewise, of zero points or minimums
  /// k-block b of a stage has the scales of its group b >> scale_shift; not with groups of half
  /// k-blocks.
  int scale_shift;
  int sum_panels;      ///< panels of a CTA whose sums a linear layer keeps at once
  NormedInput normed;  ///< of kernels that compute x from it; rows are tokens
};

struct GemvKernel {
  void (*kernel)(GemvArgs);
  int tokens;       ///< tokens of an expert, or of the call, that share one reading of weights
  int panels;       ///< panels that a warp reads at once
  int warps;        ///< of a CTA
  int fixed_bytes;  ///< shared memory beside the rings
};

/// Kernels of one operand: rows of experts (GEMM 1, and GEMM 2 before `combine`), and all tokens of
/// the call (GEMM 2 with the weighted sum), each for 8 and for 16 tokens. [0]: groups of at
/// least 128 columns, [1]: of at least 32; `halves`: both are for groups of 16.
/// `dense`: rows of a linear layer, for 8 tokens. `normed`: the same with the norm before it; null
/// if the operand's activations are not in bf16. `one`: as `rows`, for one token.
struct GemvKernels {
  GemvKernel rows[2][2], tokens[2][2];
  GemvKernel dense[2], normed[2];
  GemvKernel one[2];
};
GemvKernels gemv_bf16();
GemvKernels gemv_f16();
GemvKernels gemv_int8();
GemvKernels gemv_int8_groups();
GemvKernels gemv_int8_halves();
GemvKernels gemv_int8_minimums();
GemvKernels gemv_int8_halves_minimums();
GemvKernels gemv_int4();
GemvKernels gemv_int4_halves();
GemvKernels gemv_int4_minimums();
GemvKernels gemv_int4_halves_minimums();
GemvKernels gemv_fp8();
GemvKernels gemv_fp8_groups();
GemvKernels gemv_mxfp8();
GemvKernels gemv_fp4();
GemvKernels gemv_nvfp4();
GemvKernels gemv_mxfp4();
GemvKernels gemv_fp8_fp8();
GemvKernels gemv_fp8_fp8_groups();
GemvKernels gemv_int8_int8();
GemvKernels gemv_int8_int8_groups();
GemvKernels gemv_int8_int8_halves();
GemvKernels gemv_int8_int8_minimums();
GemvKernels gemv_int8_int8_halves_minimums();
GemvKernels gemv_int4_int8();
GemvKernels gemv_int4_int8_halves();
GemvKernels gemv_int4_int8_minimums();
GemvKernels gemv_int4_int8_halves_minimums();
GemvKernels gemv_int4_fp8();
GemvKernels gemv_int4_fp8_halves();
GemvKernels gemv_int4_fp8_minimums();
GemvKernels gemv_int4_fp8_halves_minimums();
GemvKernels gemv_mxfp4_fp8();
GemvKernels gemv_fp4_fp8();
GemvKernels gemv_nvfp4_fp8();
GemvKernels gemv_fp4_int8();
GemvKernels gemv_nvfp4_int8();

/// Most slots of a token, and units of a CTA, in gemv_token. The sums of a unit take
/// kTokenUnitBytes of shared memory.
inline constexpr int kMostTokenSlots = 32, kMostTokenUnits = 16, kTokenUnitBytes = 2048;

/// Most tokens of a linear layer whose CTAs keep the sums of its panels, by warp. Those of the
/// panels that a CTA keeps at once take up to kLinearSumBytes.
inline constexpr int kMostLinearTokens = 8, kLinearSumBytes = 32 << 10;

/// Most panels of a cluster of gemv_combine.
inline constexpr int kMostClusterPanels = 8;

/// Warps of a CTA: as many as have registers for their sums.
template <int kOctets>
inline constexpr int kGemvWarps = kOctets == 1 ? 16 : 12;
template <int kOctets>
inline constexpr int kGemvThreads = kGemvWarps<kOctets> * 32;
/// Registers of a thread of linear layers. They leave registers for one CTA of decode attention on
/// the same SM, which then starts early.
inline constexpr int kLinearRegisters = 88;
/// Bytes of the sums of a linear layer's panels, by warp.
constexpr int linear_sum_bytes(int panels, int tokens) {
  return panels * tokens * kGemvWarps<1> * 16 * static_cast<int>(sizeof(float));
}
static_assert(kMostGemvSlots <= kGemvThreads<2>);  // a thread plans one slot
/// Stages of a ring: as many as shared memory holds. More bytes in flight increase the read rate.
inline constexpr int kLeastRingStages = 2, kMostRingStages = 6;

}  // namespace moracle::cuda
