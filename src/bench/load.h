// From files to a model that is ready, beside the speed at which the same files can be read.
#pragma once

#include <string>
#include <vector>

#include "moracle/model.h"

namespace moracle::bench {

struct LoadOptions {
  ModelOptions model;
  double seconds = 1;  ///< the model is loaded again until they are over; at least once
  bool cold = false;   ///< the system forgets the files before each reading and each loading
};

struct LoadTime {
  int64_t source_bytes = 0;  ///< of all files that hold tensors
  int64_t weight_bytes = 0;  ///< packed
  int threads = 0;
  int64_t runs = 0;
  double read_seconds = 0;   ///< one thread reading them all: the median of before, between, after
  double touch_seconds = 0;  ///< the system gives as much memory as the packed weights take, all
                             ///< threads touching it; likewise. 0 where the host has no part in it
  double copy_bytes_per_second = 0;  ///< there instead: from pinned memory to the device's
  double seconds = 0;       ///< the median from opening the folder until the model is ready
  double open_seconds = 0;  ///< of that run: until the files' headers are read and checked
  std::vector<Choice> choices;

  double read_bytes_per_second() const { return static_cast<double>(source_bytes) / read_seconds; }
  double bytes_per_second() const { return static_cast<double>(source_bytes) / seconds; }
  double touch_bytes_per_second() const {
    return static_cast<double>(weight_bytes) / touch_seconds;
  }
  double share_of_reading() const { return read_seconds / seconds; }
};

/// Reads, loads, reads, loads, …, reads: on a machine that others use too, both have then seen the
/// same. Errors: whatever Checkpoint::open and Model::load refuse; kIo of reading.
Result<LoadTime> measure_load(const std::string& folder, const LoadOptions& options);

}  // namespace moracle::bench
