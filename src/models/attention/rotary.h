// RoPE settings from config.json, in both dialects.
#pragma once

#include <optional>

#include "checkpoint/config.h"
#include "models/description.h"

namespace moracle {

/// RoPE, and a factor on scores beside 1 / sqrt(head_dim) if the config has one.
struct RotaryAndScale {
  Rotary rotary;
  double score_scale = 1;  ///< YaRN's mscale_all_dim, squared: DeepSeek-V3 applies it
};

/// Reads the frequencies of `dim` columns: theta^(-2i / dim), or YaRN's blend of those with the
/// same divided by `factor` (Peng et al., "YaRN: Efficient Context Window Extension of Large
/// Language Models", 2023), or the same stretched by `factor` (linear, llama3). A
/// partial_rotary_factor rotates only the first columns; `part` is its default, and without it only
/// 1 is supported. Errors: invalid numbers (kBadFile). kUnsupported: other kinds of rotary
/// embedding, partial rotation, settings per kind of layer.
Result<RotaryAndScale> read_rotary(const Config& config, int64_t dim, double default_theta,
                                   std::optional<double> part = {});

}  // namespace moracle
