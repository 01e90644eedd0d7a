// Layers of Mamba-2, which several families have.
#pragma once

#include "models/families/decoder_family.h"

namespace moracle {

/// Keys of config.json.
struct Mamba2Keys {
  const char *num_heads, *num_groups, *state_dim, *kernel;
};
/// Reads the sizes. The columns of a group are normalized together. Errors: missing or
/// invalid values (kBadFile); groups that do not divide the heads.
Result<Mamba2Spec> read_mamba2(const Config& config, const DecoderSpec& decoder, int64_t head_dim,
                               const Mamba2Keys& keys);
/// Reads time_step_limit, if it is there. Errors: not two numbers, the smaller one first.
Status read_step_limits(const Config& config, Mamba2Spec& spec);

struct Mamba2Biases {
  bool convolution, linear;  ///< must exist
};
/// Describes `prefix`{in_proj, conv1d, A_log, D, dt_bias, norm, out_proj}.
Result<AttentionDescription> describe_mamba2(const Checkpoint& checkpoint,
                                             const std::string& prefix, const DecoderSpec& decoder,
                                             const Mamba2Spec& spec, Mamba2Biases biases);

}  // namespace moracle
