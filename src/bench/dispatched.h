// Times layers of experts on several ranks, each with its own tokens.
#pragma once

#include <vector>

#include "moracle/moe.h"
#include "moracle/parallel.h"

namespace moracle::bench {

/// Microseconds of one layer for `num_tokens` tokens on each rank.
struct DispatchedTime {
  int64_t num_tokens = 0;
  double us_gathered = 0;  ///< GatheredExperts; layers enqueued one after another
  double us_replayed = 0;  ///< the same in a graph; 0: there is none
  double us_counted = 0;   ///< AllToAllExperts, whose counts the host reads
  int64_t sent_bytes = 0;  ///< counted: by this rank, for one layer, dispatch and combine
};

/// What all ranks need to time a layer.
struct DispatchedLayers {
  Selection selection;  ///< of this rank, for the tokens of all ranks together
  std::shared_ptr<Group> group;
  std::shared_ptr<Exchange> exchange;
  std::shared_ptr<Device> device;
  int64_t num_layers = 4;  ///< each has its own weights, so that no cache holds them
};
/// Every rank calls it with the same numbers and gets its own times. Errors: the selection chose
/// nothing; memory; those of the exchange.
Result<std::vector<DispatchedTime>> time_dispatched(const DispatchedLayers& layers,
                                                    const std::vector<int64_t>& tokens);

}  // namespace moracle::bench
