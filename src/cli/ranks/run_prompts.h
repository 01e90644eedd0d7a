// moracle run with several prompts (-p A -p B …). With mode=dispatched the ranks share them.
#pragma once

#include "options/run_options.h"

namespace moracle::cli {

/// Generates for each prompt separately, with the same result as `run` with this prompt alone.
/// Prints all texts on rank 0. Dispatched ranks work in parallel: rank r takes prompts r, r + N, …
int run_prompts(const RunOptions& options);

}  // namespace moracle::cli
