// Writes a model as a GGUF file that llama.cpp loads.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/base.h"
#include "moracle/checkpoint.h"

namespace moracle MORACLE_API {

/// Types of GGUF by module, in command-line syntax: "q4_k", or
/// "*.down_proj=q6_k,lm_head=none,q4_k". The first pattern that matches the module
/// ("model.layers.0.mlp.experts.3.up_proj") or the tensor of the file ("blk.0.ffn_up_exps")
/// decides; `*` matches any text. An entry without a pattern is the default: also for the embedding
/// and the output, which a default of blocks makes q8_0. "none", and modules without an entry: the
/// type of the checkpoint.
class GgufTypes {
 public:
  /// The types: q8_0, q4_0, q4_k, q6_k, mxfp4, bf16, f16, f32. Errors: an unknown one, with the
  /// list; an empty pattern; two defaults.
  static Result<GgufTypes> parse(std::string_view text);

  struct Entry {
    std::string pattern;        ///< empty: the default, which is the last entry
    std::optional<DType> type;  ///< nullopt: none
  };
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

struct GgufReport {
  /// Tensors of one type. Norms, biases, routers and convolutions are always f32.
  struct Type {
    DType type = DType::kF32;
    int64_t num_tensors = 0, num_weights = 0, bytes = 0;
  };
  /// A tensor of another type than the requested one, which does not divide its columns.
  struct Fallback {
    std::string tensor;
    DType requested = DType::kF32, written = DType::kF32;
    int64_t columns = 0;
  };
  std::string architecture;  ///< general.architecture: "qwen3moe"
  std::vector<Type> types;
  std::vector<Fallback> fallbacks;
  /// What the checkpoint has and the file does not, each as a phrase.
  std::vector<std::string> left_out;
  int64_t bytes_before = 0;  ///< of the checkpoint's tensors that are written
  int64_t bytes_after = 0;   ///< of the file
};

/// Writes `from` to `file`, whose name ends with ".gguf": metadata, tokenizer, chat template and
/// tensors, under the names that llama.cpp has for the family. Memory holds one expert, or 4
/// million weights of another tensor. Before the weights are written, the new file is opened, and
/// must describe the same model: sizes, attention, rotary frequencies, routing. The file appears
/// only when it is complete. Errors: a family, setting, tensor or tokenizer that GGUF or the
/// family's table cannot express (kUnsupported), by name; a checkpoint that is quantized or in
/// GGUF; a pattern that matches no tensor, or single experts of a layer; `file` exists and is no
/// GGUF file; NaN or infinite weights; kIo; kCancelled.
Result<GgufReport> write_gguf(const Checkpoint& from, const GgufTypes& types,
                              const std::string& file, const Progress& progress = {});

}  // namespace MORACLE_API
