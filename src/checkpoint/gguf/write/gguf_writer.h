// Writes a GGUF file (version 3) tensor by tensor, in any order.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/write/ranged_file.h"
#include "moracle/base.h"

namespace moracle {

struct GgufEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  ///< in the order of this library, the reverse of the file's
};

/// Creates the file with its whole size, so that it can be opened before its tensors are written.
/// Values of `metadata` become, by their JSON type: booleans, strings, f32 for floats, u32 for
/// integers (i32 where negative), and arrays of these, with i32 for integers. The order of tensors
/// is that of `entries`. Errors: kUnsupported for a type without a number in GGUF, an integer
/// beyond 32 bits, and a name or shape that GGUF cannot hold; those of RangedFile::create.
Result<RangedFile> create_gguf(const std::string& path, const nlohmann::json& metadata,
                               const std::vector<GgufEntry>& entries);

}  // namespace moracle
