// Base types of every other header: results and errors, element types, views of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "moracle/export.h"

namespace moracle MORACLE_API {

/// The category of an Error. The command line maps each category to an exit code.
enum class ErrorKind {
  kInvalidArgument,  ///< the caller's arguments make no sense
  kBadFile,          ///< the file's content contradicts its format or its config
  kUnsupported,      ///< a valid request that no code here can serve
  kIo,               ///< the system refused a file or a device
  kOutOfMemory,      ///< `need` and `fact` hold the required and the available memory
  kCancelled,        ///< the caller's progress callback returned false
};

/// A failure as a value. The library never throws, prints or aborts on bad input. One misuse ends
/// the program: see Result.
struct Error {
  ErrorKind kind = ErrorKind::kInvalidArgument;
  std::string file;   ///< file or folder; empty if no file is involved
  std::string place;  ///< tensor, key, byte, layer or argument
  std::string need;   ///< the required value or state
  std::string fact;   ///< the value or state that was found

  /// One line: "file: place: needs <need>; <fact>". Empty parts are left out.
  std::string to_string() const;
};

/// Ends the program with abort() after one line on stderr. A caller read the value of a Result that
/// holds `error`, or the error (null) of a Result that holds a value.
[[noreturn]] void end_misused_result(const Error* error);

/// Either a T, or the Error that explains why there is no T. Check which one before you read it:
/// reading the other one ends the program with the error's text, in every build.
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
  T& value() {
    if (!ok()) [[unlikely]]
      end_misused_result(std::get_if<1>(&state_));
    return *std::get_if<0>(&state_);
  }
  const T& value() const {
    if (!ok()) [[unlikely]]
      end_misused_result(std::get_if<1>(&state_));
    return *std::get_if<0>(&state_);
  }

  const Error& error() const& {
    if (ok()) [[unlikely]]
      end_misused_result(nullptr);
    return *std::get_if<1>(&state_);
  }
  Error&& error() && { return std::move(const_cast<Error&>(std::as_const(*this).error())); }

 private:
  std::variant<T, Error> state_;
};

/// Success, or an Error. Reading the error of a success ends the program, too.
template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}
  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  const Error& error() const& {
    if (ok()) [[unlikely]]
      end_misused_result(nullptr);
    return *std::get_if<1>(&state_);
  }
  Error&& error() && { return std::move(const_cast<Error&>(std::as_const(*this).error())); }

 private:
  std::variant<std::monostate, Error> state_;
};
using Status = Result<void>;

/// Element types of checkpoints and kernels. kI4 is a signed 4-bit integer.
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
  kF4E2M1,
  // Blocks of GGUF: codes of several elements with their scales (docs/formats.md, "GGUF").
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kIQ2XXS,
  kIQ2XS,
  kIQ3XXS,
  kIQ1S,
  kIQ4NL,
  kIQ3S,
  kIQ2S,
  kIQ4XS,
  kIQ1M,
  kMxfp4Block,
  kNvfp4Block
};
inline constexpr size_t kNumDTypes = static_cast<size_t>(DType::kNvfp4Block) + 1;

/// The lower-case safetensors or GGUF name: "bf16", "i8", "q4_k". "i4" names two signed 4-bit codes
/// in one byte.
std::string_view name(DType type);
/// Size of one element in bits; for a block type the average, rounded up.
int bits(DType type);
/// The smallest unit of a type that has whole bytes: one element, two 4-bit codes, or a block.
struct Block {
  int elements;
  int bytes;
};
Block block(DType type);
/// Size of a row of so many elements in bytes, rounded up to whole blocks.
int64_t row_bytes(DType type, int64_t elements);
/// True for the block types of GGUF.
constexpr bool is_gguf_block(DType type) {
  return type >= DType::kQ4_0;
}

/// A typed, row-major view of host memory. The view does not own the memory.
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
/// Dtype and shape, for example "bf16 [128, 256]".
std::string to_string(const TensorView& view);

/// A Matrix whose elements are only read. A Matrix converts to it.
struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  static ConstMatrix f32(const float* data, int64_t rows, int64_t cols) {
    return {data, DType::kF32, rows, cols, cols};
  }
  static ConstMatrix f16(const void* data, int64_t rows, int64_t cols) {
    return {data, DType::kF16, rows, cols, cols};
  }
  static ConstMatrix bf16(const void* data, int64_t rows, int64_t cols) {
    return {data, DType::kBF16, rows, cols, cols};
  }
};

/// A two-dimensional, row-major view of device memory. The view does not own the memory. `stride`
/// is the distance between two rows, in elements.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  /// Without gaps between rows. C++20 has no 16-bit float type, so any pointer is accepted.
  static Matrix f32(float* data, int64_t rows, int64_t cols) {
    return {data, DType::kF32, rows, cols, cols};
  }
  static Matrix f16(void* data, int64_t rows, int64_t cols) {
    return {data, DType::kF16, rows, cols, cols};
  }
  static Matrix bf16(void* data, int64_t rows, int64_t cols) {
    return {data, DType::kBF16, rows, cols, cols};
  }
  operator ConstMatrix() const { return {data, dtype, rows, cols, stride}; }
  /// A view of rows [first, first + count).
  Matrix slice(int64_t first, int64_t count) const;
};

/// Progress callback, called between the steps of long work. `done` and `total` are in the unit of
/// the work (bytes or tokens). If the callback returns false, the work stops with
/// ErrorKind::kCancelled and nothing is lost. The call frequency depends on the number of threads
/// that share the work.
using Progress = std::function<bool(int64_t done, int64_t total)>;

/// Calls task(0) to task(count - 1), each once, on the caller's own threads, and returns when all
/// calls are done. No call waits for another, so any number of threads may share them.
using RunTasks = std::function<void(int count, const std::function<void(int)>& task)>;

/// Copies `bytes` to host memory and returns when they are there. Several threads may call it at
/// once.
using ReadMemory = std::function<Status(void* to, const void* from, size_t bytes)>;

}  // namespace MORACLE_API
