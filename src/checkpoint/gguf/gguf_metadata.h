// The metadata of a GGUF file.
#pragma once

#include <nlohmann/json.hpp>

#include "checkpoint/gguf/gguf_reader.h"

namespace moracle {

/// Reads `count` pairs of key and value, from the reader's position on. Errors: those of
/// GgufFile::open that concern metadata.
Result<nlohmann::json> read_gguf_metadata(GgufReader& reader, uint64_t count);

}  // namespace moracle
