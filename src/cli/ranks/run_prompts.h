// moracle run with several prompts (-p A -p B …). With mode=dispatched the ranks share them.
#pragma once

#include "run_options.h"

namespace moracle::cli {

/// Continues each prompt by itself, as `run` with this prompt alone does, and prints all texts on
/// rank 0. Dispatched ranks compute at the same time: rank r continues the prompts r, r + N, …
int run_prompts(const RunOptions& options);

}  // namespace moracle::cli
