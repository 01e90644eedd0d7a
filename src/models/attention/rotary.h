// RoPE settings from config.json, wherever it has them.
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

/// The kinds of RoPE that a family has beside the usual ones.
struct RotaryKinds {
  bool partial = false;    ///< partial_rotary_factor: a part of each head rotates
  double fraction = 1;     ///< the part, without such a key
  bool ntk_alpha = false;  ///< "dynamic" with an "alpha" is theta * alpha^(dim / (dim - 2))
  bool longrope = false;   ///< "longrope" has short_mscale and long_mscale
};

/// The rotary settings of all layers, as transformers merges them: rope_scaling (its older name)
/// replaces rope_parameters, unless it is empty. Nothing: config.json and the family have none.
Result<std::optional<Config>> rotary_settings(const Config& config);

/// Reads the frequencies of `dim` columns: theta^(-2i / dim), or YaRN's blend of those with the
/// same divided by `factor` (Peng et al., "YaRN: Efficient Context Window Extension of Large
/// Language Models", 2023), or the same stretched by `factor` (linear, llama3). "proportional"
/// gives the first pairs the frequencies of a whole head, and the others none. rope_theta and
/// partial_rotary_factor count where they are in the settings, then beside them. Settings that
/// come from GGUF may hold frequency_divisors, one number for each frequency. Errors: invalid
/// numbers (kBadFile). kUnsupported: other kinds of rotary embedding, partial rotation, settings
/// per kind of layer.
Result<RotaryAndScale> read_rotary(const Config& config, int64_t dim,
                                   const RotaryKinds& kinds = {});
/// The same with the settings `rope`, those of one kind of layer.
Result<RotaryAndScale> read_rotary(const Config& config, const std::optional<Config>& rope,
                                   int64_t dim, const RotaryKinds& kinds);

/// For layers without RoPE: all angles become 0, and no factor multiplies queries and keys.
void rotate_nothing(Rotary& rotary);

}  // namespace moracle
