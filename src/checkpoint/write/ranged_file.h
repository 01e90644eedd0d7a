// A new file with a header and a range of bytes for each tensor, which are written in any order.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "moracle/base.h"

namespace moracle {

class RangedFile {
 public:
  struct Range {
    int64_t begin = 0, bytes = 0;
  };
  /// Creates the file and writes `header` at its start. `ranges` are by tensor; bytes outside them
  /// become 0. Errors: kIo if the system refuses the file, or if it exists.
  static Result<RangedFile> create(const std::string& path, std::string_view header,
                                   std::map<std::string, Range> ranges, int64_t file_bytes);
  RangedFile(RangedFile&&) noexcept;
  RangedFile& operator=(RangedFile&&) noexcept;
  ~RangedFile();

  /// Writes bytes of one tensor, from byte `first` of the tensor on. Several threads may write to
  /// different bytes. Errors: kIo (disk full), with the path.
  Status write(const std::string& tensor, std::span<const std::byte> bytes, int64_t first = 0);
  /// Waits until the data is on disk, so that late system errors are reported. Every byte of every
  /// tensor must have been written before.
  Status finish();
  int64_t file_bytes() const;

 private:
  struct State;
  explicit RangedFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace moracle
