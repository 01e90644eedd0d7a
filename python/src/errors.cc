#include "errors.h"

#include <nanobind/stl/filesystem.h>

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

std::string utf8_of(nb::handle text, const char* argument) {
  if (!nb::isinstance<nb::str>(text)) {
    fail_argument(argument, "a str",
                  "it is a " + nb::cast<std::string>(nb::str(text.type().attr("__name__"))));
  }
  Py_ssize_t size = 0;
  const char* const utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (utf8 == nullptr) {
    const nb::python_error error;  // clears Python's encoding error
    fail_argument(argument, "characters that UTF-8 can encode",
                  nb::cast<std::string>(nb::str(error.value())));
  }
  return {utf8, static_cast<size_t>(size)};
}

std::filesystem::path path_of(nb::handle path, const char* argument) {
  std::filesystem::path found;
  if (!nb::try_cast(path, found)) {
    PyErr_Clear();
    fail_argument(argument, "a path of this system (str, bytes or os.PathLike)",
                  "it is " + nb::cast<std::string>(nb::repr(path)));
  }
  return found;
}

void bind_errors(const nb::module_& m) {
  // The package may have another name than moracle.
  static std::string errors_module;
  errors_module = nb::cast<std::string>(m.attr("__name__"));
  errors_module = errors_module.substr(0, errors_module.rfind('.')) + ".errors";
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Failure& failure) {
      const Error& error = failure.error();
      const nb::object type =
          nb::module_::import_(errors_module.c_str()).attr(class_of(error.kind));
      const nb::object value =
          type(failure.what(), error.file, error.place, error.need, error.fact);
      PyErr_SetObject(type.ptr(), value.ptr());
    }
  });
}

}  // namespace moracle::python
