// All tensors of a checkpoint folder, from all files. The library reads every weight byte that it
// computes with through Tensors::read.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/safetensors/read_record.h"
#include "checkpoint/safetensors/safetensors.h"
#include "moracle/base.h"

namespace moracle {

class ThreadPool;

/// The bytes of a tensor, in separate memory.
struct TensorData {
  /// If only some elements were read, the shape is [count].
  TensorView view;
  std::shared_ptr<const std::byte[]> memory;
};

class Tensors {
 public:
  Tensors() = default;
  Tensors(Tensors&&) noexcept = default;
  Tensors& operator=(Tensors&&) noexcept = default;

  /// Opens model.safetensors, or the shards in model.safetensors.index.json. Without an index it
  /// opens model-00001-of-0000N.safetensors to N of N. Errors: no such files; a missing shard; a
  /// tensor in two shards; a tensor that is listed but absent, or present but not listed.
  static Result<Tensors> open(const std::string& folder);
  static Result<Tensors> from(std::vector<SafetensorsFile> files);

  /// nullptr if absent.
  const TensorView* find(const std::string& name) const;
  /// Errors: absent (kBadFile).
  Result<TensorView> get(const std::string& name) const;
  /// The tensor; errors if it has another dtype or shape.
  Result<TensorView> get(const std::string& name, DType dtype, std::vector<int64_t> shape) const;

  /// Reads the tensor, or `count` elements from `first` on; both must be inside the tensor. The
  /// threads of the pool share the work. Several threads may read at once. Errors: absent; a NaN or
  /// infinite number, with its element; a file that was cut short after it was opened; system
  /// errors.
  Result<TensorData> read(const std::string& name, ThreadPool& pool) const;
  Result<TensorData> read(const std::string& name) const;
  Result<TensorData> read(const std::string& name, int64_t first, int64_t count,
                          ThreadPool& pool) const;
  Result<TensorData> read(const std::string& name, int64_t first, int64_t count) const;

  /// The error for an element that is not a finite number of this type. `name` must exist.
  Error not_finite(const std::string& name, int64_t element, DType type,
                   const std::byte* value) const;

  /// The file of a tensor, for messages; the folder if the tensor is absent.
  const std::string& file_of(const std::string& name) const;
  /// Makes a kBadFile error about this tensor.
  Error wrong(const std::string& name, std::string need, std::string fact) const;

  struct Entry {
    TensorView view;  ///< without data
    size_t file;
  };
  const std::map<std::string, Entry>& all() const { return entries_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  /// What read() has read; off at first.
  ReadRecord& record() const { return *record_; }

 private:
  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Entry> entries_;
  std::unordered_map<std::string_view, const Entry*> index_;  // views entries_, for find()
  std::shared_ptr<ReadRecord> record_ = std::make_shared<ReadRecord>();
};

}  // namespace moracle
