// Framework features beyond DLPack: gradients, new arrays, streams.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "moracle/device.h"

namespace moracle::python {

namespace nb = nanobind;

/// str(object) in Python.
std::string str_of(nb::handle object);

/// The torch module if the caller has imported it; else null.
nb::handle torch();
bool is_torch(nb::handle object);

/// Throws for a torch tensor that requires a gradient while torch records gradients.
void refuse_gradient(nb::handle object, const char* argument);

/// Creates an array like `object` (numpy, torch or cupy) with `rows` rows of `cols` columns.
/// `same_shape`: `object` is contiguous and has that shape.
nb::object empty_like(nb::handle object, int64_t rows, int64_t cols, bool same_shape);

/// Converts an array to another element type ("int32"), with its framework's function or numpy's.
nb::object converted(nb::handle object, const char* dtype);
/// Clamps an array to [least, most].
nb::object clipped(nb::handle object, int64_t least, int64_t most);

/// Returns the stream for a call on `device`. `stream`: an integer handle, or None for the current
/// stream of the framework of `object`; without an object, of torch if it uses CUDA. Errors: a
/// stream for the CPU; not a handle.
Stream stream_of(nb::handle stream, nb::handle object, const Device& device);

}  // namespace moracle::python
