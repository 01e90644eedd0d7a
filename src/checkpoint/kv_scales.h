// FP8 KV caches: what the config and the file of a checkpoint contain for them.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "moracle/checkpoint.h"

namespace moracle {

class Tensors;

/// Scales of one layer's keys and values: a key is its e4m3 code times its scale.
struct KvScales {
  std::vector<float> keys, values;  ///< one, or one for each head; empty: the file has none
};

/// Reads and claims the scales of the attention whose tensors begin with `prefix`
/// ("model.layers.3.self_attn."). Also claims the scales of quantized queries and weights, which
/// no backend uses. Errors: those of Tensors::read; a scale that is no float.
Result<KvScales> read_kv_scales(const Checkpoint& checkpoint, const std::string& prefix);

/// For Checkpoint::not_used: a type of keys and values in the quantization config, or scales in the
/// file. `quantization`: null if there is no config.
std::vector<std::string> unused_kv_cache(const Tensors& tensors, const Config* quantization);

}  // namespace moracle
