// The vocabulary of a layer: its shapes, activation function, routing and scheme. Describes a layer
// without any weights, so the oracle and the kernels need nothing else to know it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/base.h"
#include "moracle/quant.h"

namespace moracle MORACLE_API {

/// The activation function between the two GEMMs of an expert. g is the output of the gate, u the
/// output of the up projection. The last four functions have no gate: w13 has I rows, and the
/// result is a function of u only.
enum class Activation : uint8_t {
  kSilu,        ///< g·σ(g)·u; with a limit L > 0: g ← min(g, L), u ← clamp(u, ±L) first
  kGelu,        ///< g·Φ(g)·u
  kGeluTanh,    ///< the same with Φ(g) ≈ (1 + tanh(√(2/π)·(g + 0.044715 g³))) / 2
  kRelu2,       ///< max(g, 0)²·u
  kSwigluOai,   ///< g ← min(g, L), u ← clamp(u, ±L); g·σ(α g)·(u + β)
  kSwigluStep,  ///< min(g·σ(g), L)·clamp(u, ±L)
  kSiluNoMul,
  kGeluNoMul,
  kGeluTanhNoMul,
  kRelu2NoMul,
};
/// "silu", "gelu", "gelu_tanh", "relu2", "swigluoai", "swiglustep", "silu_no_mul", …
std::string_view name(Activation activation);
/// The inverse of name(). Also accepts the config file names "swish", "gelu_new" and
/// "gelu_pytorch_tanh". Errors list the names.
Result<Activation> parse_activation(std::string_view text);
constexpr bool is_gated(Activation activation) {
  return activation < Activation::kSiluNoMul;
}

/// An activation function with its parameters.
struct ActivationSpec {
  Activation function = Activation::kSilu;
  float alpha = 1.702f;  ///< used by swigluoai
  float beta = 1;        ///< used by swigluoai
  float limit = 0;       ///< silu: 0 means no limit; swigluoai and swiglustep require a limit
  bool operator==(const ActivationSpec&) const = default;
};

/// Converts router logits to expert weights: score function, expert choice, normalisation.
enum class Score : uint8_t {
  kSoftmax,          ///< softmax over all experts, then top_k
  kSigmoid,          ///< sigmoid of each expert's logit
  kTopkThenSoftmax,  ///< top_k of the logits, then softmax over these
  kSparseMixer,      ///< each choice: softmax over the logits near the largest one left
  kUnknown,          ///< of a family that is not known; FusedMoe::make refuses it
  kSqrtSoftplus,     ///< √log(1 + exp(logit)) of each expert
};
std::string_view name(Score score);
struct Routing {
  Score score = Score::kSoftmax;
  bool renormalize = false;      ///< divide the top_k weights by their sum
  int64_t num_groups = 1;        ///< number of equal expert groups
  int64_t top_groups = 1;        ///< top_k chooses only from this many best groups
  float scaling_factor = 1;      ///< multiplies the weights after renormalisation
  bool correction_bias = false;  ///< a per-expert bias that affects the choice, not the weights
  bool weight_on_input = false;  ///< the weight multiplies the expert's input, not its output
  bool expert_scales = false;    ///< each weight is multiplied by a number of its expert
  /// Sparse mixer: logits l with (m - l) / max(m, |l|) <= 2 * jitter are near the largest one, m.
  float jitter = 0;
  bool operator==(const Routing&) const = default;
};
std::string name(const Routing& routing);

/// Shape and number format of one matrix, known before the matrix is read.
struct MatrixShape {
  int64_t n = 0;
  int64_t k = 0;
  QuantKey key;
  /// Act-order: columns belong to groups in another order than left to right.
  bool group_index = false;
  bool bias = false;
  bool operator==(const MatrixShape&) const = default;
};

/// The properties of a layer that the oracle and the kernels need.
struct LayerSpec {
  std::string name;  ///< "model.layers.0.mlp.experts"
  /// A dense linear layer: a grouped linear with one expert and only w13. `hidden_size` is the
  /// input size, `intermediate_size` the output size.
  bool linear = false;
  int64_t num_experts = 1;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t top_k = 1;
  ActivationSpec activation;
  Routing routing;
  Scheme scheme;  ///< of w13; the weights of w2 may have another key, in `stored`
  bool group_index = false;
  bool bias = false;
  std::vector<MatrixShape> stored;  ///< see set_matrices

  /// Rows of w13 for one expert: gate and up, or up only.
  int64_t w13_rows() const {
    return is_gated(activation.function) ? 2 * intermediate_size : intermediate_size;
  }
  /// The matrices of one expert: w13 [2I, H] ([I, H] without a gate) and w2 [H, I]. A linear layer
  /// has only w13.
  std::vector<MatrixShape> matrices() const;
  /// Sets the matrices as the file stores them. Keeps them only if they differ from the fields
  /// above, for example a bias in one matrix only, or scale blocks that end inside a stack.
  void set_matrices(std::vector<MatrixShape> shapes);
  /// The scheme of each matrix, once: "int4-w4a16-g32", or "int4-w4a16-g32 + int8-w8a16-g16".
  std::string scheme_name() const;
  /// True if two layers differ only in their names.
  bool same_but_name(const LayerSpec& other) const;
};
/// The largest number of experts, hidden size and intermediate size.
inline constexpr int64_t kMaxLayerSize = 1 << 20;
/// Errors (kInvalidArgument; the place is the field): a size outside [1, kMaxLayerSize]; a top_k
/// outside [1, num_experts]; more bytes than 64 bits count; a number of the activation function
/// that is not finite, or a limit that the function cannot have; empty groups; minimums, scales
/// of 8-bit integers or sets of codes beside codes or groups that cannot have them; stored matrices
/// of other sizes. select refuses such a layer.
Status check(const LayerSpec& layer);
/// "int4-w4a16-g128 · 128 experts, top-8, 2048 → 768", then the layer's special features.
std::string describe(const LayerSpec& layer);

}  // namespace MORACLE_API
