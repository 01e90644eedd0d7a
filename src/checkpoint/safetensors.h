// One safetensors file, memory-mapped: an 8-byte little-endian header length, a JSON header, the
// data. Format: https://huggingface.co/docs/safetensors ("Format").
#pragma once

#include <map>
#include <span>
#include <string>

#include "base/mapped_file.h"
#include "moracle/base.h"

namespace moracle {

/// A file whose every tensor has been checked to lie inside the data, to be as long as its shape
/// and dtype say, and to overlap no other. Views stay valid as long as the object lives.
class SafetensorsFile {
 public:
  /// Errors (kBadFile, with file and place): truncated file, header longer than the file or than
  /// kMaxHeaderBytes, not JSON, not an object, duplicate names, negative or
  /// overflowing shape, data_offsets outside the data, of the wrong length, overlapping or leaving
  /// gaps; kUnsupported for an unknown dtype; kIo where the system refuses
  /// the file.
  static Result<SafetensorsFile> open(const std::string& path);

  /// The same checks on a file image in memory; `path` only names it. Used by the fuzzer.
  static Result<std::map<std::string, TensorView>> parse(std::span<const std::byte> image,
                                                         const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  const MappedFile& file() const { return file_; }

  /// Published headers are below 20 MB (DeepSeek-V3 shards: 1 MB); safetensors itself allows 100
  /// MB.
  static constexpr uint64_t kMaxHeaderBytes = 100'000'000;

 private:
  SafetensorsFile(MappedFile file, std::map<std::string, TensorView> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}
  MappedFile file_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace moracle
