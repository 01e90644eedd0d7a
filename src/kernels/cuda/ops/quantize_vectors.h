// Quantization of whole vectors of eight bf16, and the order of columns that wgmma reads.
#pragma once

#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/cuda/device/overlap.h"
#include "moracle/quant.h"
#include "quant/rows.h"

namespace moracle::cuda {

/// Natural order, or fragment order (layout/fragment_order.h), also of the codes that 4-bit weights
/// become.
enum class CodeOrder { kNatural, kFragments, kInt4Fragments, kFp4Fragments };

/// [rows, groups], or [groups, rows].
enum class ScaleOrder { kByRow, kByGroup };

/// True if quantize_vectors can read and write these rows: from bf16 to codes, in whole vectors,
/// with one scale per row or groups of 8 to 256 columns, a power of two.
bool in_vectors(const Matrix& from, const QuantKey& key, const Rows& to);
/// Quantizes as Ops::quantize. Requires in_vectors; fragments require columns in multiples of 32.
/// Where `to` is bf16 it gets the codes of e4m3 widened, with one scale per row: then `to` may be
/// `from`.
Status quantize_vectors(const Queue& queue, const Matrix& from, const QuantKey& key, const Rows& to,
                        CodeOrder order, Stream stream, Overlap overlap = Overlap::kNone,
                        ScaleOrder scales = ScaleOrder::kByRow);
/// Rows of experts, as Ops::plan_rows orders them from these ids.
struct OrderedRowsOf {
  const int32_t *slot_row, *topk_ids, *expert_map, *expert_offsets;
  int top_k;
  int64_t num_experts, num_rows;  ///< local experts, and rows of scales of all slots
};
/// Quantizes each row once and stores it as each row of experts that reads it, in fragment order,
/// with scales in groups by group (gemm_sm90/scale_rows.h). Requires in_vectors, and more than one
/// group.
Status quantize_ordered(const Queue& queue, const Matrix& from, const QuantKey& key, const Rows& to,
                        const OrderedRowsOf& order, Stream stream);
/// Rounds rows of bf16 to the values of MXFP8: e4m3 codes with scales in groups of 32 columns.
/// Columns are multiples of 32, rows 16-byte aligned. `from` and `to` may be the same rows. Both
/// have the same order, or `to` has fragment order.
Status round_to_codes(const Queue& queue, const Matrix& from, const QuantKey& key, const Matrix& to,
                      CodeOrder order, Stream stream, Overlap overlap = Overlap::kNone);
/// Copies rows of bf16 into fragment order. Columns are multiples of 32, rows 16-byte aligned.
Status to_fragments(const Queue& queue, const Matrix& from, const Matrix& to, Stream stream,
                    Overlap overlap = Overlap::kNone);

}  // namespace moracle::cuda
