// The numbers of ggml's types in GGUF files.
#pragma once

#include <cstdint>
#include <string>

#include "moracle/base.h"

namespace moracle {

/// Errors: kUnsupported, with number and name, for a type that this library does not read; kBadFile
/// for a type that GGUF has removed, and for an unknown number.
Result<DType> parse_ggml_type(uint32_t number, const std::string& file, const std::string& place);
/// The number of a type. Errors: kUnsupported for a type that GGUF does not have.
Result<uint32_t> ggml_number(DType type);

}  // namespace moracle
