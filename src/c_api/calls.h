// Boundary of the C API: library errors become objects, exceptions become errors.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "moracle/base.h"
#include "moracle/c.h"

/// See moracle/c.h. Formats the text at once, because a getter cannot report an allocation failure.
struct moracle_error {
  moracle::Error value;
  std::string text;
};

namespace moracle::c_api {

/// Stores `failure` for the caller and returns `status`. Out of memory: stores null and returns
/// MORACLE_OUT_OF_MEMORY.
moracle_status report(Error failure, moracle_status status, moracle_error** error) noexcept;
/// Status of an error kind.
moracle_status status_of(ErrorKind kind);

/// Runs `work`, which returns a Status, as the body of a C function.
template <class Work>
moracle_status guarded(moracle_error** error, const Work& work) noexcept {
  if (error != nullptr) *error = nullptr;
  try {
    const Status status = work();
    if (status) return MORACLE_OK;
    return report(status.error(), status_of(status.error().kind), error);
  } catch (const std::bad_alloc&) {
    return report({ErrorKind::kOutOfMemory, "", "host", "memory", "the system refused it"},
                  MORACLE_OUT_OF_MEMORY, error);
  } catch (const std::exception& thrown) {
    return report({ErrorKind::kUnsupported, "", "library", "calls without C++ exceptions",
                   std::string("it threw: ") + thrown.what()},
                  MORACLE_INTERNAL, error);
  } catch (...) {
    return report(
        {ErrorKind::kUnsupported, "", "library", "calls without C++ exceptions", "it threw"},
        MORACLE_INTERNAL, error);
  }
}

/// As above, for `work` that returns a Result<Handle*>. Stores the handle in *out.
template <class Handle, class Work>
moracle_status guarded(Handle** out, moracle_error** error, const Work& work) noexcept {
  if (out != nullptr) *out = nullptr;
  return guarded(error, [&]() -> Status {
    if (out == nullptr) {
      return Error{ErrorKind::kInvalidArgument, "", "out", "an address for the result",
                   "it is null"};
    }
    Result<Handle*> made = work();
    if (!made) return made.error();
    *out = *made;
    return {};
  });
}

/// Error for an invalid argument.
inline Error bad_argument(std::string place, std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", std::move(place), std::move(need), std::move(fact)};
}

/// Errors: a null handle or string, with the parameter's name.
inline Status check_given(const void* argument, const char* parameter) {
  if (argument != nullptr) return {};
  return bad_argument(parameter, "a value", "it is null");
}

}  // namespace moracle::c_api
