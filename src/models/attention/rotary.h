// Rotary position embeddings as config.json describes them, in both dialects.
#pragma once

#include "checkpoint/config.h"
#include "models/description.h"

namespace moracle {

/// What scores are multiplied with beside 1 / sqrt(head_dim), where the config asks for it.
struct RotaryAndScale {
  Rotary rotary;
  double score_scale = 1;  ///< YaRN's mscale_all_dim, squared: DeepSeek-V3 applies it
};

/// Frequencies of `dim` columns: theta^(-2i / dim), or YaRN's blend of those with the same divided
/// by `factor` (Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models",
/// 2023). Errors: numbers that make no sense (kBadFile); other kinds of rotary embedding, partial
/// rotation, settings per kind of layer (kUnsupported).
Result<RotaryAndScale> read_rotary(const Config& config, int64_t dim, double default_theta);

}  // namespace moracle
