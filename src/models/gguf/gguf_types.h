// Chooses the type of each tensor of a written GGUF file.
#pragma once

#include <span>
#include <string>

#include "moracle/gguf.h"

namespace moracle {

/// The types that GgufTypes may name.
std::span<const DType> gguf_written_types();

/// The entry that determines a tensor's type, by its name in the file and its module's, both
/// without ".weight"; nullptr if no entry matches.
const GgufTypes::Entry* find_gguf_type(const GgufTypes& types, const std::string& stored,
                                       const std::string& module);

}  // namespace moracle
