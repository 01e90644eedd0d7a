// All tensors of a folder with safetensors files.
#pragma once

#include <string>

#include "checkpoint/tensors/tensors.h"

namespace moracle {

/// Opens model.safetensors, or the shards in model.safetensors.index.json. Without an index it
/// opens model-00001-of-0000N.safetensors to N of N. Errors: no such files; a missing shard; a
/// tensor in two shards; a tensor that is listed but absent, or present but not listed.
Result<Tensors> open_safetensors(const std::string& folder);

}  // namespace moracle
