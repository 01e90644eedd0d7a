// Selects the modules of a checkpoint that are quantized online, and their schemes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "moracle/checkpoint.h"

namespace moracle {

/// The error for weights that an online scheme cannot quantize.
Error already_quantized(std::string file, std::string place, const std::string& scheme);

/// A module of a plain checkpoint that holds a matrix, with its tensor's name.
struct LinearModule {
  std::string name;    ///< "model.layers.0.mlp.experts.3.up_proj"
  std::string tensor;  ///< its weights: `name`.weight, or `name` itself for fused experts
  bool fused = false;  ///< one three-dimensional tensor holds all experts
  /// A router, the gate of shared experts, an indexer, embedding or output. It is never quantized,
  /// as in the files of the producers.
  bool untouched = false;
};
std::vector<LinearModule> linear_modules(const Checkpoint& checkpoint);

/// Errors: the checkpoint's experts are quantized, with their scheme.
Status check_plain(const Checkpoint& checkpoint);

/// The schemes of one checkpoint's modules under a QuantizationMap.
class OnlineChoice {
 public:
  /// Patterns may quantize what a quantized file left in 16 or 32 bits. Errors: a scheme without a
  /// pattern for a file that is already quantized, with its scheme; a pattern that matches no
  /// module, or that decides for a module that is never quantized; different schemes for modules
  /// that are multiplied together (the experts of a layer; q, k and v; gate, up and down of a dense
  /// layer).
  static Result<OnlineChoice> make(const Checkpoint& checkpoint, const QuantizationMap& map);

  const std::vector<LinearModule>& modules() const { return modules_; }
  /// The scheme of modules()[i]; nullopt: not quantized.
  std::optional<Scheme> scheme(size_t i) const { return schemes_.at(modules_[i].tensor); }
  /// The matrix, quantized if its modules have a scheme. Errors: its modules have different
  /// schemes.
  Result<DescribedMatrix> apply(DescribedMatrix&& matrix) const;
  Result<DescribedWeights> apply(DescribedWeights&& weights) const;

 private:
  Result<std::optional<Scheme>> scheme_of(const DescribedMatrix& matrix) const;

  std::vector<LinearModule> modules_;
  std::map<std::string, std::optional<Scheme>> schemes_;  // by tensor name
};

}  // namespace moracle
