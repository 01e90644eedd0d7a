// All tensors of a checkpoint, from all files, under the names that families read. The library
// reads every weight byte that it computes with through Tensors::read.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/tensors/read_record.h"
#include "checkpoint/tensors/tensor_file.h"
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

  struct Entry;
  /// Every tensor under its name in the file. Errors: a tensor in two files.
  static Result<Tensors> from(std::vector<TensorFile> files);
  /// Tensors under other names. `stored_name` gives the name that files have for a name that
  /// `entries` lacks, for messages; empty: there is none.
  using StoredName = std::function<std::string(const std::string& name)>;
  static Tensors from(std::vector<TensorFile> files, std::map<std::string, Entry> entries,
                      StoredName stored_name);
  /// The same tensors under the names that `name` gives to those of the files. Errors: two tensors
  /// of one name.
  static Result<Tensors> renamed(Tensors&& tensors, std::string (*name)(std::string_view stored));
  /// The place of all files, for messages.
  void set_folder(std::string folder) { folder_ = std::move(folder); }

  /// nullptr if absent.
  const TensorView* find(const std::string& name) const;
  /// Errors: absent (kBadFile).
  Result<TensorView> get(const std::string& name) const;
  /// The tensor; errors if it has another dtype or shape.
  Result<TensorView> get(const std::string& name, DType dtype, std::vector<int64_t> shape) const;

  /// Reads the tensor, or `count` elements from `first` on; both must be inside the tensor and
  /// whole blocks of a block type. The threads of the pool share the work. Several threads may read
  /// at once. Errors: absent; a NaN or infinite number, with its element; a file that was cut short
  /// after it was opened; system errors.
  Result<TensorData> read(const std::string& name, ThreadPool& pool) const;
  Result<TensorData> read(const std::string& name) const;
  Result<TensorData> read(const std::string& name, int64_t first, int64_t count,
                          ThreadPool& pool) const;
  Result<TensorData> read(const std::string& name, int64_t first, int64_t count) const;

  /// Reads an entry that is a source of another one. `name` is for messages.
  Result<TensorData> read(const std::string& name, const Entry& entry, int64_t first, int64_t count,
                          ThreadPool& pool) const;

  /// The error for an element that is not a finite number of this type.
  Error not_finite(const std::string& name, int64_t element, DType type,
                   const std::byte* value) const;

  /// The file of a tensor, for messages; the folder if the tensor is absent.
  const std::string& file_of(const std::string& name) const;
  /// The tensor's name; if files have another one: "blk.0.attn_q.weight (model.layers.0.…)".
  std::string shown(const std::string& name) const;
  /// Makes a kBadFile error about this tensor.
  Error wrong(const std::string& name, std::string need, std::string fact) const;

  const std::map<std::string, Entry>& all() const { return entries_; }
  const std::vector<TensorFile>& files() const { return files_; }
  /// The open files, for other Tensors of them.
  std::vector<TensorFile> take_files() && { return std::move(files_); }
  /// What read() has read; off at first.
  ReadRecord& record() const { return *record_; }

 private:
  /// The rows of an entry with Entry::row.
  Result<TensorData> read_rows(const std::string& name, const Entry& entry, int64_t first,
                               int64_t count, ThreadPool& pool) const;

  std::string folder_;
  std::vector<TensorFile> files_;
  std::map<std::string, Entry> entries_;
  std::unordered_map<std::string_view, const Entry*> index_;  // views entries_, for find()
  StoredName stored_name_;
  std::shared_ptr<ReadRecord> record_ = std::make_shared<ReadRecord>();
};

/// A tensor as families read it: a range of a stored tensor, with changed values or rows in another
/// order, or made of others.
struct Tensors::Entry {
  TensorView view;  ///< without data
  size_t file = 0;
  std::string stored = {};  ///< the tensor in the file; empty: the same name
  int64_t first_byte = 0;   ///< offset in the stored tensor
  /// Changes stored f32 values to those that families expect; null: they are the same.
  void (*change)(std::span<float> values) = nullptr;
  /// The row of the stored tensor that a row is; null: the same. A vector's values are its rows.
  std::function<int64_t(int64_t row)> row = nullptr;
  /// Makes `count` elements from `first` on of other stored tensors; null: the tensor is stored.
  std::function<Result<TensorData>(const Tensors& tensors, int64_t first, int64_t count,
                                   ThreadPool& pool)>
      make = nullptr;
};

}  // namespace moracle
