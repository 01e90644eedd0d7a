// One safetensors file: an 8-byte little-endian header length, a JSON header, the data. Format:
// https://huggingface.co/docs/safetensors ("Format").
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "base/file.h"
#include "moracle/base.h"

namespace moracle {

/// The position of a tensor in its file.
struct StoredTensor {
  TensorView view;     ///< dtype and shape; no data
  uint64_t first = 0;  ///< byte offset in the file
};

/// An open file. Every tensor was checked to lie inside the data, to have the length of its shape
/// and dtype, and to overlap no other tensor. The data is not read.
class SafetensorsFile {
 public:
  /// Errors (kBadFile, with file and place): a truncated file; a header longer than the file or
  /// than kMaxHeaderBytes; a header that is not JSON or not an object; duplicate names; a negative
  /// or overflowing shape; data_offsets that are outside the data, have the wrong length, overlap
  /// or leave gaps. kUnsupported: an unknown dtype. kIo: the system refuses the file.
  static Result<SafetensorsFile> open(const std::string& path);

  /// The same checks for a file image in memory. The views point into `image`; `path` is only used
  /// in messages.
  static Result<std::map<std::string, TensorView>> parse(std::span<const std::byte> image,
                                                         const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  /// Reads bytes of a tensor, from byte `first` of the tensor on. Several threads may read at once.
  /// Errors: system errors; kBadFile with the tensor if the file was cut short after it was opened.
  Status read(const std::string& tensor, uint64_t first, std::span<std::byte> to) const;

  /// Published headers are below 20 MB (DeepSeek-V3 shards: 1 MB); safetensors itself allows 100
  /// MB.
  static constexpr uint64_t kMaxHeaderBytes = 100'000'000;

 private:
  SafetensorsFile(File file, std::map<std::string, StoredTensor> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}
  File file_;
  std::map<std::string, StoredTensor> tensors_;
};

}  // namespace moracle
