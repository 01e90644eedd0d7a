#include "errors.h"

namespace moracle::python {
namespace {

const char* class_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return "InvalidArgument";
    case ErrorKind::kBadFile:
      return "BadFile";
    case ErrorKind::kUnsupported:
      return "Unsupported";
    case ErrorKind::kIo:
      return "IoError";
    case ErrorKind::kOutOfMemory:
      return "OutOfMemory";
    case ErrorKind::kCancelled:
      return "Cancelled";
  }
  return "Error";
}

}  // namespace

void fail_argument(std::string argument, std::string need, std::string fact) {
  throw Failure(
      {ErrorKind::kInvalidArgument, "", std::move(argument), std::move(need), std::move(fact)});
}

void bind_errors() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Failure& failure) {
      const Error& error = failure.error();
      const nb::object type = nb::module_::import_("moracle.errors").attr(class_of(error.kind));
      const nb::object value =
          type(failure.what(), error.file, error.place, error.need, error.fact);
      PyErr_SetObject(type.ptr(), value.ptr());
    }
  });
}

}  // namespace moracle::python
