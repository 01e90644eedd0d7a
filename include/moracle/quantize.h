// Writing a quantized checkpoint: the same numbers as quantizing while loading, kept in a folder.
#pragma once

#include <string>
#include <vector>

#include "moracle/base.h"
#include "moracle/checkpoint.h"

namespace moracle {

struct QuantizeOptions {
  /// "compressed-tensors"; "fp8": blocks of e4m3 as DeepSeek and Qwen store them; "modelopt": mxfp8
  /// as NVIDIA's tool stores it.
  std::string format = "compressed-tensors";
  int64_t max_shard_bytes = 5'000'000'000;  ///< of tensors in one file; a module is never split
  Progress progress;                        ///< in bytes of the tensors read
};

struct QuantizeReport {
  std::vector<Scheme> schemes;  ///< each once
  int64_t num_quantized = 0;    ///< tensors of the source that were quantized
  int64_t num_left = 0;         ///< and that were copied bit for bit
  int64_t bytes_before = 0;     ///< of all tensors
  int64_t bytes_after = 0;
  std::vector<std::string> files;  ///< that hold them
};

/// Writes `from` to the new folder `folder` with modules quantized as `map` says; config.json says
/// so too, and everything else of the folder but other forms of the weights, its README and hidden
/// files is copied. Memory holds one module at a time. The folder appears when it is whole: work
/// that fails or is stopped leaves nothing behind.
/// Errors: `folder` is not empty, or lies in the source; a source that is quantized already; a map
/// that does not fit it or quantizes nothing; a scheme that the format cannot store, and experts
/// that lie in one tensor, which no reader would find quantized (kUnsupported); weights that are
/// NaN or infinite; kIo with the file that the system refused; kCancelled.
Result<QuantizeReport> quantize(const Checkpoint& from, const QuantizationMap& map,
                                const std::string& folder, const QuantizeOptions& options = {});

}  // namespace moracle
