// All tensors of a checkpoint folder under one roof, whatever file each lies in.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "moracle/base.h"

namespace moracle {

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

  /// The file of a tensor, for messages; the folder for one that is absent.
  const std::string& file_of(const std::string& name) const;
  /// A kBadFile about this tensor.
  Error wrong(const std::string& name, std::string need, std::string fact) const;

  struct Entry {
    TensorView view;
    size_t file;
  };
  const std::map<std::string, Entry>& all() const { return entries_; }

 private:
  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Entry> entries_;
};

}  // namespace moracle
