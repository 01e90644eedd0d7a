// Times speculative decoding with a forced acceptance, which random weights do not have.
#pragma once

#include <vector>

#include "moracle/model.h"

namespace moracle::bench {

struct SpeculateOptions {
  int64_t drafts = 0;       ///< per step; 0: not timed
  double acceptance = 0.7;  ///< probability that a draft is accepted if those before it are
};

/// Times of one sequence, in microseconds.
struct Speculated {
  SpeculateOptions options;
  double us_plain = 0;     ///< a step of one token
  double us_verify = 0;    ///< a step of one token and all drafts
  double us_batch = 0;     ///< a step of as many sequences with one token each
  double us_fixed = 0;     ///< per token, with all drafts in every step
  double us_adaptive = 0;  ///< per token, with as many drafts as the measured times favour
  int64_t tokens = 0;      ///< of the adaptive text
  int64_t last_draft = 0;  ///< tokens up to the last step with drafts
};

/// Tokens of each text beyond the context.
inline constexpr int64_t kSpeculatedTokens = 512;
/// `caches` are those of 1 + drafts sequences of one length, with space for kSpeculatedTokens more.
/// Errors: of Model::forward.
Result<Speculated> speculate(Model& model, std::vector<KvCache>& caches,
                             const SpeculateOptions& options, double seconds);

}  // namespace moracle::bench
