// moracle bench --model-shape: a step of decoding, and what each part of it takes.
#include "bench.h"

namespace moracle::cli {

int run_model_bench(const BenchOptions& options) {
  return fail({ErrorKind::kUnsupported, "", "--model-shape", "to be there", options.model_shape});
}

}  // namespace moracle::cli
