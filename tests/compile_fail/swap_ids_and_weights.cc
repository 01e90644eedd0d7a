// Ids and weights are types of their own, so that swapping them is no program.
#include "moracle/moe.h"

moracle::Status run(moracle::FusedMoe& moe, const moracle::Matrix& hidden, const int32_t* ids,
                    const float* weights, const moracle::Matrix& output) {
  const moracle::TopkIds topk_ids{ids};
  const moracle::TopkWeights topk_weights{weights};
#ifdef MORACLE_MUST_NOT_COMPILE
  return moe.apply(hidden, topk_weights, topk_ids, output);
#else
  return moe.apply(hidden, topk_ids, topk_weights, output);
#endif
}
