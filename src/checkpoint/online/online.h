// Which modules of a checkpoint are quantized online, and to what.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "moracle/checkpoint.h"

namespace moracle {

/// The error about weights that an online scheme cannot take.
Error already_quantized(std::string file, std::string place, const Scheme& scheme);

/// A module of a plain checkpoint that holds a matrix, by its tensor's name and shape.
struct LinearModule {
  std::string name;        ///< "model.layers.0.mlp.experts.3.up_proj"
  std::string tensor;      ///< its weights: `name`.weight, or of fused experts `name` itself
  bool fused = false;      ///< all experts in one tensor of three dimensions
  bool untouched = false;  ///< a router, the gate of shared experts, embedding, output: never
                           ///< quantized, as the producers leave them
};
std::vector<LinearModule> linear_modules(const Checkpoint& checkpoint);

/// A QuantizationMap's answers for the modules of one checkpoint.
class OnlineChoice {
 public:
  /// Errors: the file is quantized already, with what; a pattern that matches no module, or decides
  /// about one that is never quantized; modules that are multiplied together (the experts of a
  /// layer; q, k and v; gate, up and down of a dense layer) but would get different schemes.
  static Result<OnlineChoice> make(const Checkpoint& checkpoint, const QuantizationMap& map);

  const std::vector<LinearModule>& modules() const { return modules_; }
  /// What becomes of modules()[i]; nothing: it is left as it is.
  std::optional<Scheme> scheme(size_t i) const { return schemes_.at(modules_[i].tensor); }
  /// The matrix, quantized where the choice says so. Errors: its modules would differ.
  Result<DescribedMatrix> apply(DescribedMatrix&& matrix) const;
  Result<DescribedWeights> apply(DescribedWeights&& weights) const;

 private:
  Result<std::optional<Scheme>> scheme_of(const DescribedMatrix& matrix) const;

  std::vector<LinearModule> modules_;
  std::map<std::string, std::optional<Scheme>> schemes_;  // by tensor
};

}  // namespace moracle
