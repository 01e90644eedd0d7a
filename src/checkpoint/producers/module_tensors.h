// The tensors of one module: checks and reads that the readers of several producers share.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/tensors/tensors.h"
#include "moracle/checkpoint.h"

namespace moracle {

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
/// The source that claims these tensors as a whole.
DescribedMatrix::Source source_of(const Tensors& tensors, int64_t n,
                                  std::vector<std::string> names);

}  // namespace moracle
