#include "arrays.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "frameworks.h"

namespace moracle::python {
namespace {

using nb::dlpack::dtype_code;

std::optional<DType> dtype_of(nb::dlpack::dtype type) {
  if (type.lanes != 1) return {};
  const auto sized = [&](DType b8, DType b16, DType b32, DType b64) -> std::optional<DType> {
    if (type.bits == 8 && b8 != DType::kBool) return b8;
    if (type.bits == 16 && b16 != DType::kBool) return b16;
    if (type.bits == 32 && b32 != DType::kBool) return b32;
    if (type.bits == 64 && b64 != DType::kBool) return b64;
    return {};
  };
  constexpr DType none = DType::kBool;
  switch (static_cast<dtype_code>(type.code)) {
    case dtype_code::Float:
      return sized(none, DType::kF16, DType::kF32, DType::kF64);
    case dtype_code::Bfloat:
      return sized(none, DType::kBF16, none, none);
    case dtype_code::Int:
      return sized(DType::kI8, DType::kI16, DType::kI32, DType::kI64);
    case dtype_code::UInt:
      return sized(DType::kU8, none, none, none);
    case dtype_code::Float8_E4M3FN:
      return DType::kF8E4M3;
    case dtype_code::Float8_E5M2:
      return DType::kF8E5M2;
    case dtype_code::Float8_E8M0FNU:
      return DType::kF8E8M0;
    default:
      return {};
  }
}

// Types that some frameworks cannot export through DLPack. Export them as unsigned integers of this
// width.
struct Viewed {
  std::string_view name;
  const char* integer;
  DType dtype;
};
constexpr Viewed kViewed[] = {{"bfloat16", "uint16", DType::kBF16},
                              {"float8_e4m3fn", "uint8", DType::kF8E4M3},
                              {"float8_e5m2", "uint8", DType::kF8E5M2},
                              {"float8_e8m0fnu", "uint8", DType::kF8E8M0}};

// Types that array_of_type converts, beside unsigned integers, which the library lacks.
constexpr DType kIntegers[] = {DType::kI8, DType::kU8, DType::kI16, DType::kI64};
constexpr DType kFloats[] = {DType::kF16, DType::kBF16, DType::kF64};

std::string python_type(nb::handle object) {
  return str_of(nb::object(object.type().attr("__name__")));
}

nb::ndarray<nb::ro> import(nb::handle object, Use use) {
  nb::ndarray<nb::ro> array;
  if (is_torch(object)) {
    // Avoid torch's __dlpack__: it synchronizes streams, which a CUDA graph cannot capture.
    static nb::handle to_dlpack =
        nb::object(torch().attr("utils").attr("dlpack").attr("to_dlpack")).release();
    nb::try_cast(to_dlpack(object), array, false);
  } else if (use == Use::kRead) {
    nb::try_cast(object, array, false);
  } else {
    nb::ndarray<> writable;
    if (nb::try_cast(object, writable, false)) array = nb::ndarray<nb::ro>(writable);
  }
  return array;
}

// Element type by the framework's name, if it is in kViewed.
const Viewed* viewed_of(nb::handle object) {
  if (!nb::hasattr(object, "dtype")) return nullptr;
  const std::string text = str_of(nb::object(object.attr("dtype")));
  for (const Viewed& viewed : kViewed) {
    if (text.ends_with(viewed.name)) return &viewed;
  }
  return nullptr;
}

nb::object bits_of(nb::handle object, const Viewed& viewed) {
  if (is_torch(object)) return object.attr("view")(torch().attr(viewed.integer));
  return object.attr("view")(viewed.integer);
}

// An imported array, and its element type if the library has it.
struct Imported {
  Array array;
  std::optional<DType> dtype;
};

Imported import_array(nb::handle object, const char* argument, Use use) {
  Array array;
  const Viewed* viewed = nullptr;
  try {
    array.keeper = import(object, use);
  } catch (const nb::python_error&) {
    // Reported below, with the argument's name.
  }
  if (!array.keeper.is_valid()) PyErr_Clear();  // clear the framework's own error
  if (!array.keeper.is_valid() && (viewed = viewed_of(object)) != nullptr)
    array.keeper = import(bits_of(object, *viewed), use);
  if (!array.keeper.is_valid()) {
    const bool readable = use == Use::kWrite && import(object, Use::kRead).is_valid();
    fail_argument(argument, readable ? "a writable array" : "an array (DLPack or buffer protocol)",
                  readable ? "it is read-only" : "it is a " + python_type(object));
  }
  const std::optional<DType> dtype =
      viewed != nullptr ? viewed->dtype : dtype_of(array.keeper.dtype());
  array.dtype = dtype.value_or(DType::kBool);
  array.data = const_cast<void*>(static_cast<const void*>(array.keeper.data()));
  array.shape.assign(array.keeper.shape_ptr(), array.keeper.shape_ptr() + array.keeper.ndim());
  array.strides.assign(array.keeper.stride_ptr(), array.keeper.stride_ptr() + array.keeper.ndim());
  array.device_type = array.keeper.device_type();
  array.device_id = array.keeper.device_id();
  return {std::move(array), dtype};
}

Array of_known_type(Imported imported, nb::handle object, const char* argument) {
  if (!imported.dtype) {
    fail_argument(argument, "an element type that moracle has",
                  nb::hasattr(object, "dtype") ? "it is " + str_of(nb::object(object.attr("dtype")))
                                               : "it is a " + python_type(object));
  }
  return std::move(imported.array);
}

// Saturates to int32. A plain conversion would wrap an invalid id onto an expert.
nb::object as_int32(nb::handle integers, int bits) {
  if (bits < 32) return converted(integers, "int32");
  return converted(clipped(converted(integers, "int64"), INT32_MIN, INT32_MAX), "int32");
}

}  // namespace

bool Array::is_contiguous() const {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

std::string Array::text() const {
  return to_string(TensorView{nullptr, dtype, shape});
}

Array array_of(nb::handle object, const char* argument, Use use) {
  return of_known_type(import_array(object, argument, use), object, argument);
}

Array array_of_type(nb::object& object, const char* argument, DType dtype) {
  Imported found = import_array(object, argument, Use::kRead);
  if (found.dtype == dtype) return std::move(found.array);
  const bool integers = dtype == DType::kI32;
  const nb::dlpack::dtype type = found.array.keeper.dtype();
  const bool is_unsigned =
      static_cast<dtype_code>(type.code) == dtype_code::UInt && type.lanes == 1;
  if (!found.dtype && integers && is_unsigned) {
    object = as_int32(object, type.bits);
    return array_of(object, argument);
  }
  const Array array = of_known_type(std::move(found), object, argument);
  const std::span<const DType> convertible = integers ? std::span<const DType>(kIntegers) : kFloats;
  if (std::find(convertible.begin(), convertible.end(), array.dtype) == convertible.end())
    fail_argument(argument, integers ? "integers" : "floats", "it is " + array.text());
  object = integers ? as_int32(object, type.bits) : converted(object, "float32");
  return array_of(object, argument);
}

}  // namespace moracle::python
