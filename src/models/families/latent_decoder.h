// Decoders with MLA and layers as DeepSeek has them.
#pragma once

#include "models/families/shared_moe.h"

namespace moracle {

/// Reads the sizes of MLA. Errors: missing or invalid values (kBadFile); other rotary embeddings.
Result<LatentSpec> read_latent(const Config& config);

/// Describes the whole model. Layers for multi-token prediction are not run.
Result<Description> describe_latent_decoder(const Checkpoint& checkpoint,
                                            const DecoderSpec& decoder, const LatentSpec& attention,
                                            const SharedMoeSpec& moe);

}  // namespace moracle
