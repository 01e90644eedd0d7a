// Finds the matrices of adapters in a PEFT file, in two forms: one pair of matrices for each
// expert's projection, or one pair for a parameter that holds all experts. Modules have names as in
// the checkpoint. The adapter may have been trained on another class of the model: the text-only
// class of a wrapper's language model, or the reverse.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/lora/lora_settings.h"
#include "checkpoint/tensors/tensors.h"
#include "moracle/checkpoint.h"

namespace moracle {

class AdapterReader {
 public:
  AdapterReader(const Tensors& tensors, const LoraSettings& settings)
      : tensors_(tensors), settings_(settings) {}

  /// The largest rank so far.
  int64_t rank() const { return rank_; }

  /// The adapter of one matrix [n, k]; rank 0 if the matrix has no adapter.
  Result<LoraPair> pair(const std::string& in_checkpoint, int64_t n, int64_t k);

  /// The adapters of one matrix for all experts; empty if no expert has one.
  Result<std::vector<LoraPair>> experts(const std::string& prefix, std::string_view part,
                                        int64_t num_experts, int64_t n, int64_t k);

  /// The adapters of `parameter` of a module that holds all experts [num_experts, n, k]; empty if
  /// it has none. A is [num_experts * rank, k], expert by expert. B is [n, rank * num_experts];
  /// column r * num_experts + e belongs to rank r of expert e. PEFT wraps the module once for each
  /// parameter, so names do not tell which parameter a pair belongs to. Its shapes do.
  Result<std::vector<LoraPair>> fused(const std::string& in_checkpoint, std::string_view parameter,
                                      int64_t num_experts, int64_t n, int64_t k);

  /// The adapters of linear layers of `checkpoint` that no call has read, by their names there.
  /// PEFT stores the base of an adapted lm_head beside its adapter. Errors: a base that differs
  /// from the checkpoint's.
  Result<std::map<std::string, LoraPair>> linear_layers(const Checkpoint& checkpoint);

  /// Checks that a call has read each tensor. Errors: a tensor that none has read.
  Status check_claimed() const;

 private:
  /// The name of the module in the adapter.
  std::string own_name(const std::string& module) const;
  Status check_base(const Checkpoint& checkpoint, const std::string& module,
                    const std::string& name);

  const Tensors& tensors_;
  const LoraSettings& settings_;
  std::set<std::string> claimed_;
  int64_t rank_ = 0;
};

}  // namespace moracle
