// One safetensors file: an 8-byte little-endian header length, a JSON header, the data. Format:
// https://huggingface.co/docs/safetensors ("Format").
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "checkpoint/tensors/tensor_file.h"
#include "moracle/base.h"

namespace moracle {

/// Checks safetensors files: every tensor lies inside the data, has the length of its shape and
/// dtype, and overlaps no other tensor. The data is not read.
struct SafetensorsFile {
  /// Errors (kBadFile, with file and place): a truncated file; a header longer than the file or
  /// than kMaxHeaderBytes; a header that is not JSON or not an object; duplicate names; a negative
  /// or overflowing shape; data_offsets that are outside the data, have the wrong length, overlap
  /// or leave gaps. kUnsupported: an unknown dtype. kIo: the system refuses the file.
  static Result<TensorFile> open(const std::string& path);

  /// The same checks for a file image in memory. The views point into `image`; `path` is only used
  /// in messages.
  static Result<std::map<std::string, TensorView>> parse(std::span<const std::byte> image,
                                                         const std::string& path);

  /// Published headers are below 20 MB (DeepSeek-V3 shards: 1 MB); safetensors itself allows 100
  /// MB.
  static constexpr uint64_t kMaxHeaderBytes = 100'000'000;
};

}  // namespace moracle
