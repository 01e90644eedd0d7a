// Checks of arrays against what a call needs. Each message names the argument.
#include "arrays.h"

namespace moracle::python {
namespace {

std::string numbers(const std::vector<int64_t>& values) {
  std::string text = "[";
  for (const int64_t value : values)
    text += (text.size() == 1 ? "" : ", ") + (value < 0 ? "any" : std::to_string(value));
  return text + "]";
}

std::string device_text(const Array& array) {
  switch (array.device_type) {
    case nb::device::cpu::value:
      return "cpu";
    case nb::device::cuda::value:
      return "cuda:" + std::to_string(array.device_id);
    default:
      return "another device (type " + std::to_string(array.device_type) + " of DLPack)";
  }
}

// No framework has arrays in OpenCL memory.
void check_device(const Array& array, const char* argument, const Device& device) {
  if (device.name() != device_text(array))
    fail_argument(argument, "an array on " + device.name(), "it is on " + device_text(array));
}

}  // namespace

Matrix matrix_of(const Array& array, const char* argument, const Device& device) {
  check_device(array, argument, device);
  const bool floats =
      array.dtype == DType::kF32 || array.dtype == DType::kBF16 || array.dtype == DType::kF16;
  if (!floats || array.shape.size() != 2)
    fail_argument(argument, "f32, bf16 or f16 [num_tokens, size]", "it is " + array.text());
  const bool any = array.shape[0] > 0;
  if (any && array.shape[1] > 1 && array.strides[1] != 1) {
    fail_argument(argument, "the elements of a row next to each other",
                  "its strides are " + numbers(array.strides));
  }
  const int64_t stride = array.shape[0] > 1 ? array.strides[0] : array.shape[1];
  if (stride < array.shape[1]) {
    fail_argument(argument, "rows that do not overlap, in ascending order",
                  "its strides are " + numbers(array.strides));
  }
  return {array.data, array.dtype, array.shape[0], array.shape[1], stride};
}

const void* data_of(const Array& array, const char* argument, DType dtype,
                    const std::vector<int64_t>& shape, const Device& device) {
  check_device(array, argument, device);
  bool fits = array.dtype == dtype && array.shape.size() == shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i)
    fits = shape[i] < 0 || shape[i] == array.shape[i];
  if (!fits) {
    fail_argument(argument, std::string(name(dtype)) + " " + numbers(shape),
                  "it is " + array.text());
  }
  if (!array.is_contiguous()) {
    fail_argument(argument, "contiguous memory, row after row",
                  "its strides are " + numbers(array.strides));
  }
  return array.data;
}

TensorView host_view(const Array& array, const char* argument) {
  if (array.device_type != nb::device::cpu::value)
    fail_argument(argument, "an array on cpu", "it is on " + device_text(array));
  if (!array.is_contiguous()) {
    fail_argument(argument, "contiguous memory, row after row",
                  "its strides are " + numbers(array.strides));
  }
  return {static_cast<const std::byte*>(array.data), array.dtype, array.shape};
}

}  // namespace moracle::python
