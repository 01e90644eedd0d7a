// The rows that other ranks sent to this one, in device memory.
#pragma once

#include "parallel/dispatch/dispatch.h"

namespace moracle {

struct Dispatch::Arrived {
  Rows rows;  ///< quantized, or floats without scales
  TopkIds ids;
  TopkWeights weights;
  std::vector<int32_t> host_ids;    ///< [rows, top_k]
  std::vector<float> host_weights;  ///< likewise
};

}  // namespace moracle
