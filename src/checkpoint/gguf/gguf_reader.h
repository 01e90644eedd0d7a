// Reads the numbers and strings of a GGUF header, one after another, from a file or from memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/base.h"

namespace moracle {

class GgufReader {
 public:
  /// Fills `to` with the bytes of the file from `first` on.
  using ReadBytes = std::function<Status(uint64_t first, std::span<std::byte> to)>;
  GgufReader(std::string path, uint64_t file_bytes, ReadBytes read)
      : path_(std::move(path)), file_bytes_(file_bytes), read_(std::move(read)) {}

  const std::string& path() const { return path_; }
  uint64_t position() const { return position_; }
  uint64_t file_bytes() const { return file_bytes_; }
  /// Bytes of the file behind the position.
  uint64_t left() const { return file_bytes_ - position_; }

  /// Names the owner of the next values in messages: "metadata 'general.name'".
  void set_place(std::string place) { place_ = std::move(place); }
  const std::string& place() const { return place_; }

  /// Errors: the file ends before the value. `what` names it in the message.
  template <class T>
  Result<T> number(const char* what) {
    T value{};
    Status done = take(what, std::as_writable_bytes(std::span(&value, 1)));
    if (!done) return std::move(done).error();
    return value;
  }
  /// A 64-bit length, then the bytes. Errors: longer than `max` or than the file.
  Result<std::string> text(const char* what, uint64_t max);

  Error wrong(std::string need, std::string fact) const {
    return {ErrorKind::kBadFile, path_, place_, std::move(need), std::move(fact)};
  }
  Error unsupported(std::string need, std::string fact) const {
    return {ErrorKind::kUnsupported, path_, place_, std::move(need), std::move(fact)};
  }

 private:
  Status take(const char* what, std::span<std::byte> to);
  std::string path_, place_;
  uint64_t file_bytes_;
  ReadBytes read_;
  uint64_t position_ = 0;
  std::vector<std::byte> buffer_;
  uint64_t buffer_first_ = 0;  // the byte of the file that buffer_ begins with
};

}  // namespace moracle
