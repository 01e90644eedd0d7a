// Measuring the rows that serve a layer, so that the oracle can choose by time.
#pragma once

#include <memory>

#include "moracle/moe.h"

namespace moracle::bench {

struct TuneOptions {
  std::vector<int64_t> tokens = {1, 16, 256};
  double seconds = 20;            ///< for the layer, making weights included
  int64_t most_bytes = 0;         ///< of memory for a row's weights
  DeviceName device;              ///< whose rows are timed
  bool bf16_activations = false;  ///< see Request
};

/// Times every row that serves the layer on `device`, which options.device names, in the table's
/// order, at each number of tokens. A row that takes over eight times as long as the best at one of
/// them is not asked for the rest, and rows for which no time is left are not asked at all, but the
/// first always is: the oracle compares only what was measured throughout. Errors: nothing serves
/// the layer; memory; kCancelled.
Result<TunedLayer> tune(const LayerSpec& layer, const Machine& machine,
                        const std::shared_ptr<Device>& device, const TuneOptions& options,
                        const Progress& progress = {});

}  // namespace moracle::bench
