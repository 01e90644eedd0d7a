// What the frameworks of arrays do beside DLPack: gradients, new arrays, streams.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "moracle/device.h"

namespace moracle::python {

namespace nb = nanobind;

/// str(object) in Python.
std::string str_of(nb::handle object);

/// torch once the caller has imported it; null before.
nb::handle torch();
bool is_torch(nb::handle object);

/// Fails for a torch tensor that needs a gradient while torch records gradients.
void refuse_gradient(nb::handle object, const char* argument);

/// A new array like `object` (numpy, torch or cupy) with `rows` rows of `cols` columns.
/// `same_shape`: `object` has that shape, and rows of adjacent elements.
nb::object empty_like(nb::handle object, int64_t rows, int64_t cols, bool same_shape);

/// The array in another element type ("int32"), converted by its framework, or by numpy if that has
/// no such function.
nb::object converted(nb::handle object, const char* dtype);
/// The array with each number outside [least, most] replaced by the nearer of the two.
nb::object clipped(nb::handle object, int64_t least, int64_t most);

/// The stream for a call on `device`. `stream`: an integer handle, or None for the current stream
/// of the framework that made `object`; without an object, of torch if it uses CUDA. Errors: a
/// stream for the CPU; no handle.
Stream stream_of(nb::handle stream, nb::handle object, const Device& device);

}  // namespace moracle::python
