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

/// Where a tensor lies in its file.
struct StoredTensor {
  TensorView view;     ///< dtype and shape; no data
  uint64_t first = 0;  ///< byte of the file
};

/// An open file whose every tensor has been checked to lie inside the data, to be as long as its
/// shape and dtype say, and to overlap no other. The data is not read.
class SafetensorsFile {
 public:
  /// Errors (kBadFile, with file and place): truncated file, header longer than the file or than
  /// kMaxHeaderBytes, not JSON, not an object, duplicate names, negative or
  /// overflowing shape, data_offsets outside the data, of the wrong length, overlapping or leaving
  /// gaps; kUnsupported for an unknown dtype; kIo where the system refuses
  /// the file.
  static Result<SafetensorsFile> open(const std::string& path);

  /// The same checks on a file image in memory, which the views show; `path` only names it.
  static Result<std::map<std::string, TensorView>> parse(std::span<const std::byte> image,
                                                         const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  /// Bytes of a tensor, `first` from its start. Several threads may read at once. Errors: the
  /// system's; kBadFile, naming the tensor, where the file was cut short after it was opened.
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
