// An open file with tensors, of any format. A format's reader checks the file and makes one.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"
#include "moracle/base.h"

namespace moracle {

/// The position of a tensor in its file.
struct StoredTensor {
  TensorView view;     ///< dtype and shape; no data
  uint64_t first = 0;  ///< byte offset in the file
};

class TensorFile {
 public:
  TensorFile(File file, std::map<std::string, StoredTensor> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  /// Reads bytes of a tensor, from byte `first` of the tensor on. Several threads may read at once.
  /// Errors: system errors; kBadFile with the tensor if the file was cut short after it was opened.
  Status read(const std::string& tensor, uint64_t first, std::span<std::byte> to) const;

 private:
  File file_;
  std::map<std::string, StoredTensor> tensors_;
};

/// "tensor 'name'", safe to print: long names are cut, all but printable ASCII is escaped.
std::string tensor_place(std::string_view name);
/// Quotes text from a file in the same way.
std::string quoted_ascii(std::string_view text);

}  // namespace moracle
