// A producer is a tool that writes quantized checkpoints. Its reader interprets the quantization
// config for a module, and converts the module's tensors to canonical form.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "checkpoint/config.h"
#include "checkpoint/safetensors/tensors.h"
#include "moracle/checkpoint.h"

namespace moracle {

/// The config's statement about one module, by name.
enum class Says {
  kQuantized,  ///< listed
  kPlain,      ///< excluded
  kNothing,    ///< the tool's default applies: linears are quantized, the router is not
};

/// The matrix of one linear layer, described from the tensors in the file.
struct DescribedLinear {
  MatrixShape shape;
  Scheme scheme;
  DescribedMatrix::Part part;
  /// The tensor with the group of each column; no data: left to right. Matrices can be stacked only
  /// if these tensors are equal.
  TensorData column_groups;
  float input_scale = 0;  ///< stored activation scale (static schemes); 0: none
};

class Reader {
 public:
  virtual ~Reader() = default;
  virtual Says says(const std::string& module) const = 0;
  /// True if the file holds this module in the producer's quantized form.
  virtual bool stores(const Tensors& tensors, const std::string& module) const = 0;
  /// The tensor names of the quantized form, for the message about a missing module.
  virtual std::string expected(const std::string& module) const = 0;
  /// Checks every tensor of the module. Errors: a missing tensor, or another shape or dtype than
  /// required.
  virtual Result<DescribedLinear> describe(const Tensors& tensors,
                                           const std::string& module) const = 0;
  /// Describes expert e of a module whose tensors hold all experts in their first dimension.
  /// Errors: as describe; kUnsupported from producers that never write such tensors.
  virtual Result<DescribedLinear> describe_expert(const Tensors& tensors, const std::string& module,
                                                  int64_t e, int64_t num_experts) const;
};

struct Producer {
  std::string_view name;  ///< the value of quantization_config.quant_method
  /// Errors: an unsupported variant of the method, by name.
  Result<std::unique_ptr<Reader>> (*open)(const Config& quantization);
};

/// Describes a module without quantization: `module`.weight as floats.
Result<DescribedLinear> describe_plain(const Tensors& tensors, const std::string& module);

/// Describes expert e of the unquantized tensor `module`: [E, N, K], or [E, K, N] if `transposed`.
/// Biases are in `module`_bias.
Result<DescribedLinear> describe_plain_expert(const Tensors& tensors, const std::string& module,
                                              int64_t e, int64_t num_experts, bool transposed);

// Functions that several readers use.

/// The tensor; errors if it is not f32, f16 or bf16.
Result<TensorView> get_floats(const Tensors& tensors, const std::string& name);
/// Scales as f32, from any 16- or 32-bit float type in the file. Errors: those of Tensors::read.
Result<std::vector<float>> read_scales(const Tensors& tensors, const std::string& name);
/// The same for `count` elements from `first` on. The range must be inside the tensor.
Result<std::vector<float>> read_scales(const Tensors& tensors, const std::string& name,
                                       int64_t first, int64_t count);
/// A stored activation scale: one f32 or 16-bit float in a tensor of one element. It must be
/// positive and finite.
Result<float> read_input_scale(const Tensors& tensors, const std::string& name);
/// Adds `module`.bias to `names` and returns true if the file has one. Errors: it is not floats
/// [n].
Result<bool> add_bias(const Tensors& tensors, const std::string& module, int64_t n,
                      std::vector<std::string>& names);
/// The same for `module`_bias [num_experts, n]; the expert uses its row e.
Result<bool> add_expert_bias(const Tensors& tensors, const std::string& module, int64_t num_experts,
                             int64_t n, std::vector<std::string>& names);
Result<std::vector<float>> read_expert_bias(const Tensors& tensors, const std::string& module,
                                            int64_t e, int64_t n);
/// A matrix of this shape without data.
CanonicalMatrix matrix_of(const MatrixShape& shape);
/// Sets codes that the file already stores in canonical form.
void set_codes(CanonicalMatrix& matrix, TensorData&& data);
/// The part that claims these tensors as a whole.
DescribedMatrix::Part part_of(const Tensors& tensors, int64_t n, std::vector<std::string> names);

}  // namespace moracle
