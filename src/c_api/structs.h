// Versioned structs: the first member is the struct's size in the caller's headers.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "base/text.h"
#include "base/try.h"
#include "c_api/calls.h"

namespace moracle::c_api {

/// Upper bound of a struct's size: an uninitialized size must not cause an out-of-bounds read.
inline constexpr size_t kMostStructBytes = 4096;

/// Errors: a null pointer; an invalid size.
inline Status check_size(const size_t* size, const char* parameter) {
  MORACLE_CHECK(check_given(size, parameter));
  if (*size >= sizeof(size_t) && *size <= kMostStructBytes) return {};
  return bad_argument(str(parameter, ".size"), "sizeof the struct", str("it is ", *size));
}

/// Reads the caller's struct. Members that older headers lack are 0. Errors: those of check_size; a
/// non-zero member that this library does not know.
template <class Struct>
Result<Struct> read_struct(const Struct* from, const char* parameter) {
  MORACLE_CHECK(check_size(from == nullptr ? nullptr : &from->size, parameter));
  Struct known{};
  std::memcpy(&known, from, std::min(from->size, sizeof(Struct)));
  const auto* const bytes = reinterpret_cast<const char*>(from);
  const bool more =
      from->size > sizeof(Struct) &&
      std::any_of(bytes + sizeof(Struct), bytes + from->size, [](char byte) { return byte != 0; });
  if (!more) return known;
  return Error{ErrorKind::kUnsupported, "", parameter,
               str("members of library version ", moracle_version()),
               "a member of newer headers is set"};
}

/// As read_struct; null means defaults.
template <class Struct>
Result<Struct> read_optional_struct(const Struct* from, const char* parameter) {
  if (from == nullptr) return Struct{};
  return read_struct(from, parameter);
}

/// Writes `known` into the caller's struct, but not its size. Clears members that this library does
/// not know.
template <class Struct>
Status write_struct(Struct known, Struct* to, const char* parameter) {
  MORACLE_CHECK(check_size(to == nullptr ? nullptr : &to->size, parameter));
  known.size = to->size;
  std::memset(to, 0, known.size);
  std::memcpy(to, &known, std::min(known.size, sizeof(Struct)));
  return {};
}

}  // namespace moracle::c_api
