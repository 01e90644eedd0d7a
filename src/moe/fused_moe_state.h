// What one layer's experts hold once they are made, and the part of apply that every activation
// format shares.
#pragma once

#include "kernels/grouped_linear.h"
#include "moe/stage.h"
#include "moracle/moe.h"

namespace moracle {

struct FusedMoe::State {
  Plan plan;
  std::shared_ptr<Workspace> workspace;
  std::unique_ptr<GroupedLinear> w13;
  std::unique_ptr<GroupedLinear> w2;
  Buffer expert_map;          // i32 [num_experts], where not every expert is here
  Buffer adapters_buffer;     // zeroed: an adapter that was never set adds nothing
  AdapterScratch adapters{};  // in that buffer

  Device& device() const { return workspace->device(); }
  /// FusedMoe's, but for what the standard library throws.
  static Result<FusedMoe> make(DescribedWeights&& weights, const Selection& selection,
                               std::shared_ptr<Workspace> workspace, const Progress& progress);
  Result<PackedWeights> pack(DescribedWeights&& weights, const Progress& progress) const;
  /// output = the sum, weighed (null: each is 1), of GEMM 2 of the activation of GEMM 1 of the rows
  /// of `x` that scratch.rows names.
  Status run_experts(const Matrix& x, const MoeScratch& scratch, LoraIds lora_ids,
                     const float* topk_weights, const Matrix& output, Stream stream) const;

 private:
  Status add_adapters(const Matrix& x, const int32_t* row_index, bool is_w13,
                      const MoeScratch& scratch, LoraIds lora_ids, const Matrix& y,
                      Stream stream) const;
  Status quantize_static(const Matrix& from, const int32_t* row_index, const MoeScratch& scratch,
                         const GroupedLinear& linear, const Rows& to, Stream stream) const;
  // GEMM 1, activation and quantization of some rows: what GEMM 2 takes.
  Result<GroupedRows> run_w13(const Matrix& x, const GroupedRows& input, const MoeScratch& scratch,
                              LoraIds lora_ids, Stream stream) const;
  // Rows of the part that begins at `first`, whole experts where these fit; `left` becomes the
  // exact number from there on where it takes several.
  int64_t next_part(int64_t first, int64_t& left, const int32_t* offsets) const;
};

struct PackedWeights::State {
  LayerSpec layer;
  ExpertMap experts;
  const Backend* backend = nullptr;
  std::string device;                   // its name
  std::vector<KernelWeights> matrices;  // w13 and w2, or a linear layer's only one
};

}  // namespace moracle
