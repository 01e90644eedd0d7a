// Times the operations of an exchange between the devices of ranks.
#pragma once

#include <string>
#include <vector>

#include "moracle/parallel.h"

namespace moracle::bench {

struct ExchangeTime {
  std::string operation;   ///< "all-reduce", "all-gather", "reduce-scatter", "all-to-all"
  int64_t bytes = 0;       ///< of a rank's input
  double us = 0;           ///< per operation, many enqueued one after another
  double us_replayed = 0;  ///< in a graph of several; 0: the exchange or the operation has none
};

/// Every rank calls it with the same sizes (multiples of 8 bytes for each rank) and gets its own
/// times. Errors: memory; those of the exchange.
Result<std::vector<ExchangeTime>> time_exchange(Exchange& exchange, Group& group, Device& device,
                                                const std::vector<int64_t>& sizes);

}  // namespace moracle::bench
