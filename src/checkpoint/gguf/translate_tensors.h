// Finds the tensors that a family reads in those of a GGUF file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/gguf/convention.h"

namespace moracle {

/// The tensors of `stored` under the names that the tables of `family` give. A tensor that no table
/// has keeps its name, or, in layers from `num_layers` on, becomes "model.layers.48.nextn.…".
/// Errors: experts that do not divide their tensor; two tensors with one name.
Result<std::map<std::string, Tensors::Entry>> translate_gguf_tensors(const Tensors& stored,
                                                                     const GgufConvention& family,
                                                                     int64_t num_layers);

/// The name that GGUF files have for a name that the family reads; empty: no table has it.
std::string gguf_name_of(const GgufConvention& family, const std::string& name);

}  // namespace moracle
