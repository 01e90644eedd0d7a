// All tensors of a checkpoint folder under one roof, whatever file each lies in. Every byte of a
// weight that the library uses comes through Tensors::read.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors/safetensors.h"
#include "moracle/base.h"

namespace moracle {

class ThreadPool;

/// A tensor's bytes in memory of their own.
struct TensorData {
  TensorView view;  ///< of elements that are not the whole tensor: shape [count]
  std::shared_ptr<const std::byte[]> memory;
};

class Tensors {
 public:
  /// model.safetensors, or the shards that model.safetensors.index.json names. Errors: neither is
  /// there; a missing shard; a tensor in two shards, or listed but absent, or present but not
  /// listed.
  static Result<Tensors> open(const std::string& folder);
  static Result<Tensors> from(std::vector<SafetensorsFile> files);

  /// nullptr if absent.
  const TensorView* find(const std::string& name) const;
  /// Errors: absent (kBadFile).
  Result<TensorView> get(const std::string& name) const;
  /// The tensor, which must have this dtype and shape.
  Result<TensorView> get(const std::string& name, DType dtype, std::vector<int64_t> shape) const;

  /// Reads the tensor, or `count` of its elements from `first` on; both lie in it. The threads of
  /// the pool each do a share. Several threads may read at once. Errors: absent; a number that is
  /// NaN or infinite, with its element; a file that was cut short after it was opened; the
  /// system's.
  Result<TensorData> read(const std::string& name, ThreadPool& pool) const;
  Result<TensorData> read(const std::string& name) const;
  Result<TensorData> read(const std::string& name, int64_t first, int64_t count,
                          ThreadPool& pool) const;
  Result<TensorData> read(const std::string& name, int64_t first, int64_t count) const;

  /// The error about an element that is no finite number of this type. `name` is there.
  Error not_finite(const std::string& name, int64_t element, DType type,
                   const std::byte* value) const;

  /// The file of a tensor, for messages; the folder for one that is absent.
  const std::string& file_of(const std::string& name) const;
  /// A kBadFile about this tensor.
  Error wrong(const std::string& name, std::string need, std::string fact) const;

  struct Entry {
    TensorView view;  ///< without data
    size_t file;
  };
  const std::map<std::string, Entry>& all() const { return entries_; }

 private:
  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Entry> entries_;
};

}  // namespace moracle
