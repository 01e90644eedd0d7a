// Arrays of Python frameworks as views: DLPack and the buffer protocol, without a copy.
#pragma once

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "errors.h"
#include "moracle/device.h"

namespace moracle::python {

/// Memory, shape and dtype of an array. `keeper` owns the memory; release it under the GIL.
struct Array {
  nb::ndarray<nb::ro> keeper;
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  ///< in elements
  int device_type = 1;           ///< DLPack's device type: 1 is the CPU, 2 is CUDA
  int device_id = 0;

  bool is_contiguous() const;
  /// "bf16 [4, 256]"
  std::string text() const;
};

/// Access of a call to an array.
enum class Use { kRead, kWrite };

/// Imports an array. `argument` is the parameter's name, for errors. Errors: not an array; a dtype
/// that the library lacks; a read-only array where `use` is kWrite.
Array array_of(nb::handle object, const char* argument, Use use = Use::kRead);

/// As array_of, with i32 or f32 elements. The framework converts other integer or float types;
/// `object` then becomes the new array. Integers outside int32 saturate. Errors: not integers; not
/// floats.
Array array_of_type(nb::object& object, const char* argument, DType dtype);

/// Views the array as a matrix [rows, cols]. Errors: another number of dimensions; columns that are
/// not adjacent; a dtype other than f32, bf16 or f16; memory of another device.
Matrix matrix_of(const Array& array, const char* argument, const Device& device);
/// Returns the data of a contiguous array of this dtype and shape on the device. A size of -1
/// matches any. Errors: anything else.
const void* data_of(const Array& array, const char* argument, DType dtype,
                    const std::vector<int64_t>& shape, const Device& device);
/// Views a contiguous array in host memory. Errors: another device; strides.
TensorView host_view(const Array& array, const char* argument);

}  // namespace moracle::python
