// Decoders with Kimi Delta Attention, and MLA in some layers.
#pragma once

#include "models/families/latent/latent_decoder.h"

namespace moracle {

/// True for layers with KDA: layer_types, or, without that key, `by_default`. Errors: other types;
/// not one for each layer.
Result<std::vector<bool>> read_delta_layers(const Config& config, std::vector<bool> by_default);

/// Describes `prefix`{q,k,v,b}_proj, the convolutions, A_log, dt_bias, f_proj and g_proj, or with a
/// rank f_a_proj, f_b_proj, g_a_proj and g_b_proj, o_norm and `o_name`. A_log has the shape
/// `log_shape`.
Result<KimiDeltaDescription> describe_kimi_delta(
    const Checkpoint& checkpoint, const std::string& prefix, const DecoderSpec& decoder,
    const KimiDeltaSpec& spec, const std::vector<int64_t>& log_shape, const char* o_name);

}  // namespace moracle
