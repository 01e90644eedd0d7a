// One list of cases for many uses: the tests, `moracle check`, the benchmarks, the support matrix.
// A case runs a whole FusedMoe on a backend and compares each output with a computation in double
// from the canonical weights. The error bound is derived from the arithmetic of that case.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moracle/moe.h"
#include "timing/random_matrix.h"

namespace moracle::conformance {

struct Shape {
  int64_t num_experts, hidden_size, intermediate_size, top_k;
  bool operator==(const Shape&) const = default;
};
/// "8x130x34x2": experts, hidden size, intermediate size, top_k.
std::string name(const Shape& shape);
Result<Shape> parse_shape(std::string_view text);

/// How tokens choose experts.
enum class Spread : uint8_t {
  kUniform,    ///< at random
  kOneExpert,  ///< all tokens have the same first choice
  kHoles,      ///< at random; a third of the slots are -1
};
std::string_view name(Spread spread);

/// Features of a layer beside its scheme.
struct Variant {
  std::string_view
      name;  ///< "plain", "bias", "swigluoai", "ep-3-round-robin", "batched", "lora", …
  std::string_view what;  ///< description for users
  /// Turns a request for a plain layer into one for this variant.
  void (*change)(Request& request);
  bool reload = false;  ///< the layer is made with other weights first
};
std::span<const Variant> variants();
const Variant* find_variant(std::string_view name);

struct Case {
  std::string_view backend;
  Scheme scheme;
  Shape shape;
  int64_t num_tokens;
  Spread spread = Spread::kUniform;
  std::string_view variant = "plain";
};
/// The request of the case to the oracle. `c.variant` is one of variants().
Request request_of(const Case& c);
/// The command that runs only this case.
std::string reproducer(const Case& c);

std::vector<Scheme> schemes();
std::vector<Shape> shapes();
/// Beside these, for fp8 weights in blocks of 128 columns: both matrices end within a block, and
/// the rows of w13 for the up projection begin within one. 64 or 32 divide the columns.
std::vector<Shape> shapes_of_odd_blocks(const Scheme& scheme);
/// Every backend of this build x schemes x shapes x token counts x spreads, and every variant.
std::vector<Case> cases();

struct Outcome {
  enum Kind : uint8_t { kPassed, kRefused, kFailed } kind = kPassed;
  std::string message;  ///< kRefused: the oracle's reasons; kFailed: where, both values, the bound
  double worst = 0;     ///< largest error as a share of its bound
};
/// `machine`: the machine that the oracle sees; null: this one.
Outcome run(const Case& c, const std::shared_ptr<Device>& device, const Machine* machine = nullptr);

using timing::random_matrix;
using timing::shuffle_groups;
/// Random weights for a layer.
DescribedWeights random_weights(const LayerSpec& spec, uint64_t seed);

/// Inputs of one apply.
struct Inputs {
  std::vector<float> hidden;      ///< [num_tokens, hidden_size]
  std::vector<int32_t> ids;       ///< [num_tokens, top_k]
  std::vector<float> weights;     ///< likewise
  std::vector<int32_t> lora_ids;  ///< [num_tokens]; empty: no adapters
};
Inputs random_inputs(const Request& request, int64_t num_tokens, Spread spread, uint64_t seed);
/// Makes as many adapters as the request allows, of different ranks. Later adapters leave some
/// matrices unchanged.
std::vector<LoraWeights> random_adapters(const Request& request, uint64_t seed);

/// Rounds inputs and adapters to the activation dtype of a device, if that is bf16. Rounded values
/// enter every device unchanged.
void round_to(DType activation_dtype, Inputs& in, std::vector<LoraWeights>& adapters);

/// Significant bits that a correct implementation keeps.
struct Precision {
  int products = 24;  ///< of float activations, in products
  int stored = 24;    ///< of values between the stages: 8 if bf16
  int64_t group = 0;  ///< KernelPlan::product_group
  /// All groups of a row have one power of two in products: weights are off by up to 2^-10 of the
  /// largest scale of their row, and quantized activations as `products` and `group` say.
  bool one_exponent = false;
};
Precision precision_of(const Plan& plan);

/// The output that a case must give, in double. `bound` is how far a correct implementation that
/// sums in f32 may be from it.
struct Expected {
  std::vector<double> output;  ///< [num_tokens, hidden_size]
  std::vector<double> bound;
};
Expected expected(const LayerSpec& spec, const DescribedWeights& weights,
                  std::span<const float> hidden, std::span<const int32_t> topk_ids,
                  std::span<const float> topk_weights, std::span<const LoraWeights> adapters = {},
                  std::span<const int32_t> lora_ids = {}, Precision precision = {});

}  // namespace moracle::conformance
