// Translates the tensors of a GGUF file to the names that a family reads.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/gguf/convention.h"

namespace moracle {

/// The tensors of `stored` under the names that the tables of `family` give. A tensor that no table
/// names keeps its name, or, in layers from `num_layers` on, becomes "model.layers.48.nextn.…".
/// Errors: experts that do not divide their tensor; two tensors with one name.
Result<std::map<std::string, Tensors::Entry>> translate_gguf_tensors(const Tensors& stored,
                                                                     const GgufConvention& family,
                                                                     int64_t num_layers);

/// The table entry for a name that the family reads, and the name in files.
struct GgufName {
  const GgufTensor* table_entry;
  std::string stored;
};
std::optional<GgufName> find_gguf_name(const GgufConvention& family, const std::string& name);
/// Its `stored`; empty: no table has the name.
std::string gguf_name_of(const GgufConvention& family, const std::string& name);

}  // namespace moracle
