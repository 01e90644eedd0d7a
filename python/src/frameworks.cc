#include "frameworks.h"

#include <nanobind/stl/string.h>

#include "errors.h"

namespace moracle::python {
namespace {

// Package of an array's type: "numpy", "cupy", "jaxlib".
std::string package_of(nb::handle object) {
  const std::string module = str_of(nb::object(object.type().attr("__module__")));
  return module.substr(0, module.find('.'));
}

// Map 0 to cudaStreamLegacy (1). In a Stream, null is the device's own stream, which does not
// synchronize with the legacy stream.
constexpr uintptr_t kLegacy = 1;

bool torch_uses_cuda() {
  return torch() && nb::cast<bool>(torch().attr("cuda").attr("is_initialized")());
}

// torch's fast query of the current stream, which its compiled code uses; null if this torch lacks
// it. torch.cuda.current_stream creates two Python objects.
nb::handle raw_stream_of_torch() {
  static const nb::handle function =
      nb::object(nb::getattr(torch().attr("_C"), "_cuda_getCurrentRawStream", nb::none()))
          .release();
  return function.is_none() ? nb::handle() : function;
}

// The framework's current stream on CUDA device `device`, "cuda:0". Other frameworks: the legacy
// stream, on which DLPack makes an array ready by default.
uintptr_t current_stream(nb::handle object, const std::string& device) {
  const int index = std::stoi(device.substr(device.find(':') + 1));
  if (object.is_none() ? torch_uses_cuda() : is_torch(object)) {
    const nb::handle raw = raw_stream_of_torch();
    if (raw) return nb::cast<uintptr_t>(raw(index));
    const nb::object current = torch().attr("cuda").attr("current_stream")(index);
    return nb::cast<uintptr_t>(current.attr("cuda_stream"));
  }
  if (package_of(object) != "cupy") return kLegacy;
  const nb::object cuda = nb::module_::import_("cupy").attr("cuda");
  return nb::cast<uintptr_t>(cuda.attr("get_current_stream")(index).attr("ptr"));
}

}  // namespace

std::string str_of(nb::handle object) {
  return nb::cast<std::string>(nb::steal<nb::str>(PyObject_Str(object.ptr())));
}

nb::handle torch() {
  static nb::handle module;  // modules stay loaded until exit
  if (!module) {
    const nb::dict modules = nb::cast<nb::dict>(nb::module_::import_("sys").attr("modules"));
    if (modules.contains("torch")) module = nb::object(modules["torch"]).release();
  }
  return module;
}

bool is_torch(nb::handle object) {
  static nb::handle type;
  if (!type) {
    if (!torch() || !nb::hasattr(torch(), "Tensor")) return false;
    type = nb::object(torch().attr("Tensor")).release();
  }
  return PyObject_IsInstance(object.ptr(), type.ptr()) == 1;
}

void refuse_gradient(nb::handle object, const char* argument) {
  if (!is_torch(object) || !nb::cast<bool>(object.attr("requires_grad")) ||
      !nb::cast<bool>(torch().attr("is_grad_enabled")()))
    return;
  throw Failure({ErrorKind::kUnsupported, "", argument,
                 "a call without gradients, such as inside torch.no_grad(): moracle computes "
                 "forward only",
                 "it has requires_grad"});
}

nb::object empty_like(nb::handle object, int64_t rows, int64_t cols, bool same_shape) {
  if (is_torch(object)) {
    static nb::handle like = nb::object(torch().attr("empty_like")).release();
    if (same_shape) return like(object);  // takes half the time of new_empty
    return object.attr("new_empty")(nb::make_tuple(rows, cols));
  }
  const std::string package = package_of(object);
  if (package != "numpy" && package != "cupy") {
    fail_argument("output", "an array, because " + package + " arrays have no known constructor",
                  "it is None");
  }
  nb::dict options;
  options["dtype"] = object.attr("dtype");
  return nb::module_::import_(package.c_str()).attr("empty")(nb::make_tuple(rows, cols), **options);
}

nb::object converted(nb::handle object, const char* dtype) {
  if (is_torch(object)) return object.attr("to")(torch().attr(dtype));
  if (nb::hasattr(object, "astype")) return object.attr("astype")(dtype);
  const nb::module_ numpy = nb::module_::import_("numpy");
  const bool has_dlpack = nb::hasattr(object, "__dlpack__");
  return numpy.attr(has_dlpack ? "from_dlpack" : "asarray")(object).attr("astype")(dtype);
}

nb::object clipped(nb::handle object, int64_t least, int64_t most) {
  return object.attr(is_torch(object) ? "clamp" : "clip")(least, most);
}

Stream stream_of(nb::handle stream, nb::handle object, const Device& device) {
  const Platform platform = device.platform();
  if (stream.is_none() && platform != Platform::kCuda) return {};
  uintptr_t handle = 0;
  if (stream.is_none()) {
    handle = current_stream(object, device.name());
  } else if (platform == Platform::kCpu) {
    fail_argument("stream", "None: a CPU has no streams", "it is " + str_of(stream));
  } else if (!nb::isinstance<nb::int_>(stream) || !nb::try_cast(stream, handle, false)) {
    fail_argument("stream", "the handle of a stream as an integer, or None",
                  "it is " + str_of(nb::repr(stream)));
  }
  if (platform == Platform::kCuda && handle == 0) handle = kLegacy;
  return {reinterpret_cast<void*>(handle)};
}

}  // namespace moracle::python
