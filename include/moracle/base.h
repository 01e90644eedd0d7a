// What every other header builds on: results and errors, element types, views of memory.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace moracle {

/// What kind of trouble an Error reports; the command maps it to an exit code.
enum class ErrorKind {
  kInvalidArgument,  ///< the caller asked for something that makes no sense
  kBadFile,          ///< a file's content is not what its format or its config promises
  kUnsupported,      ///< meaningful, but nothing here can serve it
  kIo,               ///< the system refused a file or a device
  kOutOfMemory,      ///< memory needed and memory there are in `need` and `fact`
  kCancelled,        ///< the caller's progress callback said stop
};

/// A failure as a value. The library never throws, prints or aborts on bad input.
struct Error {
  ErrorKind kind = ErrorKind::kInvalidArgument;
  std::string file;   ///< file or folder; empty where none is involved
  std::string place;  ///< tensor, key, byte, layer or argument
  std::string need;   ///< what has to be there
  std::string fact;   ///< what is there

  /// One line: "file: place: needs <need>; <fact>", empty parts left out.
  std::string to_string() const;
};

/// A T or the Error that explains why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(value()); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& value() { return assert(ok()), *std::get_if<0>(&state_); }
  const T& value() const { return assert(ok()), *std::get_if<0>(&state_); }

  const Error& error() const& { return assert(!ok()), *std::get_if<1>(&state_); }
  Error&& error() && { return assert(!ok()), std::move(*std::get_if<1>(&state_)); }

 private:
  std::variant<T, Error> state_;
};

/// Success, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}
  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  const Error& error() const& { return assert(!ok()), *std::get_if<1>(&state_); }
  Error&& error() && { return assert(!ok()), std::move(*std::get_if<1>(&state_)); }

 private:
  std::variant<std::monostate, Error> state_;
};
using Status = Result<void>;

/// Element types that occur in checkpoints and in kernels.
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kI4,
  kBool,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kF4E2M1
};
inline constexpr size_t kNumDTypes = static_cast<size_t>(DType::kF4E2M1) + 1;

/// The name that safetensors uses, lower case: "bf16", "i8"; "i4" for two signed codes in a byte.
std::string_view name(DType type);
/// Bits of one element.
int bits(DType type);

/// A typed view of host memory, row-major. Does not own.
struct TensorView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  int64_t num_elements() const;
  size_t num_bytes() const;
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data);
  }
};
/// "bf16 [128, 256]"
std::string to_string(const TensorView& view);

/// A two-dimensional, row-major piece of a device's memory. Does not own.
/// `stride` is the distance between rows in elements.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  static Matrix f32(float* data, int64_t rows, int64_t cols) {
    return {data, DType::kF32, rows, cols, cols};
  }
  /// Rows [first, first + count).
  Matrix slice(int64_t first, int64_t count) const;
};

/// Called between steps of long work with what is done and the total, both in the work's own units
/// (bytes, tokens). Returning false stops the work with ErrorKind::kCancelled and nothing lost.
/// How often depends on the threads that share the work.
using Progress = std::function<bool(int64_t done, int64_t total)>;

}  // namespace moracle
