// Time from files to a ready model, beside the read speed of the same files.
#pragma once

#include <string>
#include <vector>

#include "moracle/model.h"

namespace moracle::bench {

struct LoadOptions {
  ModelOptions model;
  double seconds = 1;  ///< load repeatedly until this time is over; at least once
  bool cold = false;   ///< drop the files from the page cache before each read and each load
};

struct LoadTime {
  int64_t source_bytes = 0;  ///< bytes of all files that hold tensors
  int64_t weight_bytes = 0;  ///< packed
  int threads = 0;
  int64_t runs = 0;
  double read_seconds = 0;   ///< one thread reads all files: median of before, between, after
  double touch_seconds = 0;  ///< all threads touch as much new memory as the packed weights take;
                             ///< median likewise. 0 if the host has no part in it
  double copy_bytes_per_second = 0;  ///< used in that case: from pinned memory to device memory
  double seconds = 0;                ///< median from opening the folder until the model is ready
  double open_seconds = 0;           ///< of that run: until the files' headers are read and checked
  std::vector<Choice> choices;

  double read_bytes_per_second() const { return static_cast<double>(source_bytes) / read_seconds; }
  double bytes_per_second() const { return static_cast<double>(source_bytes) / seconds; }
  double touch_bytes_per_second() const {
    return static_cast<double>(weight_bytes) / touch_seconds;
  }
  double share_of_reading() const { return read_seconds / seconds; }
};

/// Reads, loads, reads, loads, …, reads: on a shared machine, reads and loads then see the same
/// conditions. Errors: those of Checkpoint::open and Model::load; kIo of reading.
Result<LoadTime> measure_load(const std::string& folder, const LoadOptions& options);

}  // namespace moracle::bench
