#include "c_api/calls.h"

namespace moracle::c_api {

moracle_status report(Error failure, moracle_status status, moracle_error** error) noexcept {
  if (error == nullptr) return status;
  try {
    std::string text = failure.to_string();
    *error = new moracle_error{std::move(failure), std::move(text)};
    return status;
  } catch (...) {
    return MORACLE_OUT_OF_MEMORY;
  }
}

moracle_status status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return MORACLE_INVALID_ARGUMENT;
    case ErrorKind::kBadFile:
      return MORACLE_BAD_FILE;
    case ErrorKind::kUnsupported:
      return MORACLE_UNSUPPORTED;
    case ErrorKind::kIo:
      return MORACLE_IO;
    case ErrorKind::kOutOfMemory:
      return MORACLE_OUT_OF_MEMORY;
    case ErrorKind::kCancelled:
      return MORACLE_CANCELLED;
  }
  return MORACLE_INTERNAL;
}

}  // namespace moracle::c_api

#define MORACLE_TEXT_(number) #number
#define MORACLE_DOTTED_(a, b, c) MORACLE_TEXT_(a) "." MORACLE_TEXT_(b) "." MORACLE_TEXT_(c)

const char* moracle_version() {
  return MORACLE_DOTTED_(MORACLE_VERSION_MAJOR, MORACLE_VERSION_MINOR, MORACLE_VERSION_PATCH);
}

const char* moracle_error_text(const moracle_error* error) {
  return error == nullptr ? nullptr : error->text.c_str();
}
const char* moracle_error_file(const moracle_error* error) {
  return error == nullptr ? nullptr : error->value.file.c_str();
}
const char* moracle_error_place(const moracle_error* error) {
  return error == nullptr ? nullptr : error->value.place.c_str();
}
const char* moracle_error_need(const moracle_error* error) {
  return error == nullptr ? nullptr : error->value.need.c_str();
}
const char* moracle_error_fact(const moracle_error* error) {
  return error == nullptr ? nullptr : error->value.fact.c_str();
}
void moracle_error_free(moracle_error* error) {
  delete error;
}
