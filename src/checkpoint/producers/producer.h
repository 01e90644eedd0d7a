// A producer is a tool that writes quantized checkpoints. Its reader knows two things: what the
// quantization config says about a module, and how that module's tensors become canonical.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "checkpoint/config.h"
#include "checkpoint/safetensors/tensors.h"
#include "moracle/checkpoint.h"

namespace moracle {

/// What the config says about one module, by name.
enum class Says {
  kQuantized,  ///< listed
  kPlain,      ///< excluded
  kNothing,    ///< the tool's habit decides: linears yes, the router no
};

/// One linear layer's matrix, described from the tensors that are there.
struct DescribedLinear {
  MatrixShape shape;
  Scheme scheme;
  DescribedMatrix::Part part;
  /// The tensor that says which group each column belongs to; no data: left to right. Matrices can
  /// be stacked only where these are equal.
  TensorData column_groups;
  float input_scale = 0;  ///< stored scale of the activations (static schemes); 0: none
};

class Reader {
 public:
  virtual ~Reader() = default;
  virtual Says says(const std::string& module) const = 0;
  /// True if the file holds this module in the producer's quantized form.
  virtual bool stores(const Tensors& tensors, const std::string& module) const = 0;
  /// The names that the quantized form would have, for the message about a missing module.
  virtual std::string expected(const std::string& module) const = 0;
  /// Checks every tensor of the module. Errors: missing, of another shape or dtype than needed.
  virtual Result<DescribedLinear> describe(const Tensors& tensors,
                                           const std::string& module) const = 0;
  /// Expert e of a module whose tensors hold all experts, experts outermost. Errors: as describe;
  /// kUnsupported by producers that never write such tensors.
  virtual Result<DescribedLinear> describe_expert(const Tensors& tensors, const std::string& module,
                                                  int64_t e, int64_t num_experts) const;
};

struct Producer {
  std::string_view name;  ///< as in quantization_config.quant_method
  /// Errors: a variant of the method that cannot be read, by name.
  Result<std::unique_ptr<Reader>> (*open)(const Config& quantization);
};

/// Modules without quantization: `module`.weight as float.
Result<DescribedLinear> describe_plain(const Tensors& tensors, const std::string& module);

/// Expert e of `module` [E, …], plain: [E, N, K], or [E, K, N] where `transposed`; biases
/// `module`_bias.
Result<DescribedLinear> describe_plain_expert(const Tensors& tensors, const std::string& module,
                                              int64_t e, int64_t num_experts, bool transposed);

// Shared by the readers.

/// The tensor, which must hold f32, f16 or bf16.
Result<TensorView> get_floats(const Tensors& tensors, const std::string& name);
/// Scales as f32, whatever 16- or 32-bit float the file holds. Errors: those of Tensors::read.
Result<std::vector<float>> read_scales(const Tensors& tensors, const std::string& name);
/// The same for `count` elements from `first` on, which the tensor has.
Result<std::vector<float>> read_scales(const Tensors& tensors, const std::string& name,
                                       int64_t first, int64_t count);
/// A stored activation scale: one f32 (or 16-bit float), in a tensor of one element; positive,
/// finite.
Result<float> read_input_scale(const Tensors& tensors, const std::string& name);
/// Adds `module`.bias to `names` if the file has one; true if so. Errors: it is not floats [n].
Result<bool> add_bias(const Tensors& tensors, const std::string& module, int64_t n,
                      std::vector<std::string>& names);
/// The same for `module`_bias [num_experts, n], and expert e's row of it.
Result<bool> add_expert_bias(const Tensors& tensors, const std::string& module, int64_t num_experts,
                             int64_t n, std::vector<std::string>& names);
Result<std::vector<float>> read_expert_bias(const Tensors& tensors, const std::string& module,
                                            int64_t e, int64_t n);
/// A matrix without numbers yet.
CanonicalMatrix matrix_of(const MatrixShape& shape);
/// Codes that the file holds as canonical form has them.
void set_codes(CanonicalMatrix& matrix, TensorData&& data);
/// The part that claims these tensors, all of each.
DescribedMatrix::Part part_of(const Tensors& tensors, int64_t n, std::vector<std::string> names);

}  // namespace moracle
