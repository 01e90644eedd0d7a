// A random model and its tokenizer, to serve in load tests.
#pragma once

#include "bench/model.h"
#include "moracle/text.h"

namespace moracle::bench {

/// A model of this shape with random weights. Errors: layers that the shape does not have; more
/// than `most_bytes` of weights; those of Model::load.
Result<Model> load_random(const ModelShape& shape, const Scheme& scheme, int64_t num_layers,
                          int64_t most_bytes, const ModelOptions& options);

/// A tokenizer whose ids have texts of their own: a byte for each of the first 256 ids, then words
/// such as " 300". No id is special.
Result<Tokenizer> random_tokenizer(int64_t vocab_size);

}  // namespace moracle::bench
