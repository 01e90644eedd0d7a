// Hyper-connections in files: the residual stream is several streams, see HyperShape.
#pragma once

#include "models/families/decoder_family.h"

namespace moracle {

/// Reads hc_mult, hc_sinkhorn_iters and hc_eps. Errors: missing or invalid values.
Status read_hyper_connections(const Config& config, DecoderSpec& decoder);

/// Describes `prefix`{fn,base,scale} before attention or a feed-forward.
Result<HyperDescription> describe_hyper_connection(const Checkpoint& checkpoint,
                                                   const std::string& prefix,
                                                   const DecoderSpec& decoder);
/// The same at the end of a model, which has input weights alone.
Result<HyperDescription> describe_input_weights(const Checkpoint& checkpoint,
                                                const std::string& prefix,
                                                const DecoderSpec& decoder);

}  // namespace moracle
