// Arrays of Python frameworks as views: DLPack and the buffer protocol, without a copy.
#pragma once

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "errors.h"
#include "moracle/device.h"

namespace moracle::python {

/// An array's memory, shape and dtype. `keeper` keeps the memory alive; release it under the GIL.
struct Array {
  nb::ndarray<nb::ro> keeper;
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  ///< in elements
  int device_type = 1;           ///< of DLPack: 1 is the CPU, 2 is CUDA
  int device_id = 0;

  bool is_contiguous() const;
  /// "bf16 [4, 256]"
  std::string text() const;
};

/// What a call does with an array.
enum class Use { kRead, kWrite };

/// `argument` is the parameter's name, for the message. Errors: not an array; a dtype that the
/// library does not have; a read-only array where `use` is kWrite.
Array array_of(nb::handle object, const char* argument, Use use = Use::kRead);

/// As array_of, but with elements of i32 or f32. Other integers or floats are converted by their
/// framework; `object` then becomes the new array. Integers outside int32 become its nearest
/// number. Errors: no integers, no floats.
Array array_of_type(nb::object& object, const char* argument, DType dtype);

/// The array as a matrix [rows, cols]. Errors: another number of dimensions; columns that are not
/// next to each other; another dtype than f32, bf16 or f16; memory of another device.
Matrix matrix_of(const Array& array, const char* argument, const Device& device);
/// The data of a contiguous array of this dtype and shape in memory of the device. A size of -1
/// allows any. Errors: otherwise.
const void* data_of(const Array& array, const char* argument, DType dtype,
                    const std::vector<int64_t>& shape, const Device& device);
/// A contiguous view of host memory. Errors: another device; strides.
TensorView host_view(const Array& array, const char* argument);

}  // namespace moracle::python
