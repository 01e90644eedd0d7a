// Translates metadata of GGUF to the keys of config.json.
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/config.h"
#include "checkpoint/gguf/convention.h"

namespace moracle {

struct TranslatedConfig {
  nlohmann::json values = nlohmann::json::object();
  Config::Origins origins;
  /// Values of keys that the file leaves out: the defaults of llama.cpp for all architectures.
  nlohmann::json left_out = nlohmann::json::object();
};

/// Applies the tables of `family`. `stored`: the tensors, which show the size of the vocabulary and
/// tied embeddings. Errors: a required key that is missing; a repeated value that differs.
Result<TranslatedConfig> translate_gguf_config(const Config& metadata, const GgufConvention& family,
                                               const Tensors& stored);

}  // namespace moracle
