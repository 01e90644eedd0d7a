// Applies a family's table of keys backwards: from config.json to GGUF's metadata.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/config.h"
#include "checkpoint/experts/convention.h"
#include "checkpoint/gguf/convention.h"

namespace moracle {

/// The metadata of the keys in `gguf`, in the tables that families share, and block_count. Keys
/// that config.json lacks are left out. `rope`: the rotary settings in `config`; only kinds that
/// llama.cpp names are written.
nlohmann::json draft_gguf_metadata(const Config& config, const std::optional<Config>& rope,
                                   const ExpertConvention& family, const GgufConvention& gguf,
                                   int64_t num_layers);

/// Errors (kUnsupported): `metadata` lacks a required key of the tables. The message names the key
/// of config.json.
Status require_gguf_keys(const nlohmann::json& metadata, const Config& config,
                         const GgufConvention& gguf);

}  // namespace moracle
