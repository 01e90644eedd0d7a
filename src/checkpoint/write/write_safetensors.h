// Writes safetensors files tensor by tensor, in any order, with memory for none of them.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

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

/// One file. The header is written first, from what the tensors will be: wide types before narrow
/// ones, then by name, so that every tensor lies on a multiple of its own width (PyTorch cannot
/// view others). The same entries and bytes give the same file.
class SafetensorsWriter {
 public:
  /// Errors: kIo where the system refuses the file; kUnsupported for a dtype that safetensors does
  /// not have.
  static Result<SafetensorsWriter> create(const std::string& path,
                                          std::vector<SafetensorsEntry> entries);
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  /// A piece of one tensor, `first` bytes from its start. Errors: kIo (disk full), with the path.
  Status write(const std::string& tensor, std::span<const std::byte> bytes, int64_t first = 0);
  /// Waits until the disk has it: errors that the system reports late are errors. Every byte of
  /// every tensor must have been written.
  Status finish();
  int64_t file_bytes() const;

 private:
  struct State;
  explicit SafetensorsWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// "model.safetensors" of one, "model-00002-of-00005.safetensors" of several; `index` counts from
/// 0.
std::string shard_name(size_t index, size_t count);

/// Which units go into which file, in order: as many as fit into `limit` bytes, at least one. A
/// unit is never split.
std::vector<std::vector<size_t>> plan_shards(std::span<const int64_t> unit_bytes, int64_t limit);

}  // namespace moracle
