// Converts library errors into Python exceptions: moracle.Error with kind, file, place, need and
// fact.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <exception>
#include <filesystem>
#include <string>
#include <utility>

#include "moracle/base.h"

namespace moracle::python {

namespace nb = nanobind;

/// C++ exception that carries an Error to Python.
class Failure : public std::exception {
 public:
  explicit Failure(Error error) : error_(std::move(error)), text_(error_.to_string()) {}
  const char* what() const noexcept override { return text_.c_str(); }
  const Error& error() const { return error_; }

 private:
  Error error_;
  std::string text_;
};

/// Throws a kInvalidArgument error.
[[noreturn]] void fail_argument(std::string argument, std::string need, std::string fact);

/// Converts a str to UTF-8. Errors: another type; a lone surrogate, which UTF-8 cannot encode.
std::string utf8_of(nb::handle text, const char* argument);
/// Converts a file path. Errors: not a str, bytes or os.PathLike; characters that paths cannot
/// hold.
std::filesystem::path path_of(nb::handle path, const char* argument);

/// Returns the value of a Result, or throws Failure.
template <class T>
T value_of(Result<T> result) {
  if (!result) throw Failure(std::move(result).error());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

/// Translates Failure into the exception class of its kind, from the package's module errors.
void bind_errors(const nb::module_& m);

}  // namespace moracle::python
