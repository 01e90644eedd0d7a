// Writes safetensors files tensor by tensor, in any order, without buffering a tensor.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/write/ranged_file.h"
#include "moracle/base.h"

namespace moracle {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  int64_t bytes() const {
    return static_cast<int64_t>(TensorView{nullptr, dtype, shape}.num_bytes());
  }
};

/// One file. The header is written first, from the tensors' dtypes and shapes. Wide types come
/// before narrow ones, then tensors are sorted by name. This aligns every tensor to its element
/// width, because PyTorch cannot view unaligned tensors. The same entries and bytes give the same
/// file.
class SafetensorsWriter {
 public:
  /// Errors: kIo if the system refuses the file; kUnsupported for a dtype that safetensors does not
  /// have.
  static Result<SafetensorsWriter> create(const std::string& path,
                                          std::vector<SafetensorsEntry> entries);

  /// As RangedFile's.
  Status write(const std::string& tensor, std::span<const std::byte> bytes, int64_t first = 0) {
    return file_.write(tensor, bytes, first);
  }
  Status finish() { return file_.finish(); }
  int64_t file_bytes() const { return file_.file_bytes(); }

 private:
  explicit SafetensorsWriter(RangedFile file) : file_(std::move(file)) {}
  RangedFile file_;
};

/// "model.safetensors" for one shard, "model-00002-of-00005.safetensors" for several. `index`
/// counts from 0.
std::string shard_name(size_t index, size_t count);

/// Assigns items to files, in order. A file gets as many items as fit into `limit` bytes, at least
/// one. An item is never split.
std::vector<std::vector<size_t>> plan_shards(std::span<const int64_t> item_bytes, int64_t limit);

}  // namespace moracle
