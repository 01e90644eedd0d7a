// Activation rows packed in expert order, as micro-kernels read them.
#pragma once

#include "base/threads/thread_pool.h"
#include "kernels/cpu/ukernels/ukernels.h"
#include "kernels/grouped_linear.h"

namespace moracle::cpu {

/// Format of packed rows. Kernels may multiply an expert with at most `skinny_rows` rows by codes.
struct RowForm {
  Operand x = Operand::kF32;
  /// Floats as two bf16 terms: see DotArgs::x_low.
  bool two_terms = false;
  /// Arithmetic for experts with few rows; its elements are at most as wide as f32.
  Operand skinny = Operand::kF32;
  bool skinny_in_limbs = false;  ///< floats as kLimbs rows of int8 for experts with few rows
  bool in_limbs = false;         ///< for the others, too
  int skinny_rows = kSkinnyRows;
  ColumnOrder order = ColumnOrder::kPlain;  ///< Operand::kBf16
  int64_t k = 0;
  int64_t segment = 0;         ///< columns per sum of codes
  int64_t scale_segments = 1;  ///< segments that share a scale, where floats are integers
  int64_t num_scales = 0;      ///< as in Rows
  int64_t scale_cols = 0;      ///< columns per scale
  int64_t minimum_cols = 0;    ///< columns per minimum of the weights; 0: no minimums
};

struct PackedRows {
  std::byte* values = nullptr;  ///< row r at values + r · stride, columns from k on 0
  int64_t stride = 0;           ///< bytes
  int64_t rest = 0;             ///< bytes to the second term of each value; 0: one term
  int32_t* sums = nullptr;      ///< [rows, num_sums] Σ codes of each segment of rows of integers
  int64_t num_sums = 0;
  float* scales = nullptr;  ///< [rows, num_scales], if rows are codes
  int64_t num_scales = 0;
  /// [rows, num_segment_scales], where floats are integers.
  float* segment_scales = nullptr;
  int64_t num_segment_scales = 0;
  /// Rows in limbs: limb p of row r at values + (r · kLimbs + p) · limb_stride, with its sums
  /// and scales in row r · kLimbs + p of `sums` and of `segment_scales`.
  int64_t limb_stride = 0;
  /// [rows, num_minimums] Σ x over the columns of each minimum, without the scale of a whole row.
  float* minimum_sums = nullptr;
  int64_t num_minimums = 0;
};

/// Columns that kernels read: the matrix's columns, padded to whole tiles of this arithmetic.
int64_t read_cols(Operand arithmetic, int64_t k);

/// Bytes from one packed row to the next, and bytes of `rows` packed rows.
int64_t packed_stride(const RowForm& form);
size_t packed_bytes(const RowForm& form, int64_t rows);

class ExpertRows;

/// Gathers and converts the rows of a run.
class RowPacker {
 public:
  RowPacker(const RowForm& form, const GroupedRows& from, const UkernelSet& kernels);

  /// Lays out `rows` packed rows in `memory`, which has packed_bytes and is aligned to 64 bytes.
  PackedRows scratch(int64_t rows, std::byte* memory) const;
  /// Packs rows [first, past) of the run to rows from `at` on. `skinny`: their expert has few rows.
  void pack(const PackedRows& to, int64_t at, int64_t first, int64_t past, bool skinny) const;
  /// Packs rows [first, past) to rows from 0 on, on all threads if the work is large enough.
  void split(const PackedRows& to, int64_t first, int64_t past, const ExpertRows& rows,
             int skinny_rows, ThreadPool& pool) const;

 private:
  int64_t source_of(int64_t r) const {
    return from_.row_index ? from_.row_index[from_.first_row + r] : r;
  }
  void pack_row(const PackedRows& to, int64_t at, int64_t r, bool skinny) const;
  /// Copies row `at`, packed before, to the next row.
  void copy_row(const PackedRows& to, int64_t at) const;
  void sum_groups(const void* from, int64_t source, float* sums) const;

  RowForm form_;
  const GroupedRows& from_;
  const PackKernel *main_, *skinny_;  // null: rows are f32 already
};

}  // namespace moracle::cpu
