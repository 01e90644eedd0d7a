// State of one layer's experts after make, and the part of apply that all activation formats share.
#pragma once

#include "kernels/fused_experts.h"
#include "kernels/grouped_linear.h"
#include "moe/stage.h"
#include "moracle/moe.h"

namespace moracle {

struct FusedMoe::State {
  Plan plan;
  std::shared_ptr<Workspace> workspace;
  std::unique_ptr<GroupedLinear> w13;
  std::unique_ptr<GroupedLinear> w2;
  std::vector<std::unique_ptr<FusedExperts>> fused;  // in the order of the plan
  Buffer expert_map;          // i32 [num_experts]; empty if the map is the identity
  Buffer adapters_buffer;     // zeroed: an unset adapter adds nothing
  AdapterScratch adapters{};  // in adapters_buffer

  Device& device() const { return workspace->device(); }
  /// The kernels for the layer as a whole that run so many tokens; null: those of the matrices do.
  FusedExperts* fused_for(int64_t num_tokens) const;
  /// FusedMoe::make and FusedMoe::pack, without the handling of standard-library exceptions. `old`:
  /// see MoeAccess::make_moved.
  static Result<FusedMoe> make(DescribedWeights&& weights, const Selection& selection,
                               std::shared_ptr<Workspace> workspace, const Progress& progress,
                               const State* old = nullptr);
  Result<PackedWeights> pack(DescribedWeights&& weights, const Progress& progress) const;
  /// Runs GEMM 1, the activation and GEMM 2 on the rows of `x` that scratch.rows lists. Writes the
  /// weighted sum of each token's results to `output`. Null topk_weights: each weight is 1.
  /// `each_slot`: `output` has a row for each slot, of the activation dtype, and nothing is summed.
  /// `prepared`: x in the form that GEMM 1 reads; x itself is then only counted. `add`: adds the
  /// rows instead; requires that GEMM 2 does not.
  Status run_experts(const Matrix& x, const MoeScratch& scratch, LoraIds lora_ids,
                     const float* topk_weights, const Matrix& output, Stream stream,
                     bool each_slot = false, const Rows* prepared = nullptr,
                     const AddRows& add = {}) const;
  /// The same for rows in the form of GEMM 1, with their results one after another in `y`.
  Status run_rows(const Rows& x, const MoeScratch& scratch, const Matrix& y, Stream stream) const;
  /// The input of the experts: weighted, or converted, where the layer needs it.
  Result<Matrix> input_of(const Matrix& hidden, TopkWeights& topk_weights, LoraIds lora_ids,
                          bool is_fused, const MoeScratch& scratch, Stream stream) const;

 private:
  Status add_adapters(const Matrix& x, const int32_t* row_index, bool is_w13,
                      const MoeScratch& scratch, LoraIds lora_ids, const Matrix& y,
                      Stream stream) const;
  Status quantize_static(const Matrix& from, const int32_t* row_index, const MoeScratch& scratch,
                         const GroupedLinear& linear, const Rows& to, Stream stream) const;
  // Runs GEMM 1, activation and quantization of some rows. Returns the input of GEMM 2.
  Result<GroupedRows> run_w13(const Matrix& x, const GroupedRows& input, const MoeScratch& scratch,
                              LoraIds lora_ids, Stream stream) const;
  // Returns the number of rows in the part that begins at `first`: whole experts where these fit.
  // If several parts are needed, `left` becomes the exact number of rows from `first` on.
  int64_t next_part(int64_t first, int64_t& left, const int32_t* offsets) const;
};

struct PackedWeights::State {
  LayerSpec layer;
  ExpertMap experts;
  const Backend* backend = nullptr;
  std::string device;                   // device name
  std::vector<KernelWeights> matrices;  // w13 and w2, or a linear layer's only one
};

}  // namespace moracle
