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
  /// LongRoPE: as in DecoderSpec.
  int64_t short_context = 0;
  float short_factor = 1, long_factor = 1;
};

/// What a family says about RoPE beside config.json.
struct RotaryDefaults {
  double theta = 10'000;
  /// The part of a head that rotates, if config.json has no partial_rotary_factor; empty: only 1 is
  /// supported.
  std::optional<double> part = {};
  bool ntk_alpha = false;  ///< "dynamic" with an "alpha" is theta * alpha^(dim / (dim - 2))
  bool longrope = false;   ///< "longrope" has short_mscale and long_mscale
};

/// Reads the frequencies of `dim` columns: theta^(-2i / dim), or YaRN's blend of those with the
/// same divided by `factor` (Peng et al., "YaRN: Efficient Context Window Extension of Large
/// Language Models", 2023), or the same stretched by `factor` (linear, llama3). A
/// partial_rotary_factor rotates only the first columns. Errors: invalid numbers (kBadFile).
/// kUnsupported: other kinds of rotary embedding, partial rotation, settings per kind of layer.
Result<RotaryAndScale> read_rotary(const Config& config, int64_t dim,
                                   const RotaryDefaults& defaults = {});

/// For layers without RoPE: all angles become 0, and no factor multiplies queries and keys.
void rotate_nothing(Rotary& rotary);

}  // namespace moracle
