// Launches kernels on the device's queue. An error names the kernel.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/opencl/device/opencl_queue.h"
#include "kernels/opencl/device/programs.h"

namespace moracle::opencl {

/// An argument in local memory.
struct LocalBytes {
  size_t bytes;
};

/// Sets the arguments of one kernel, from left to right. A Matrix becomes three: pointer, stride
/// (long) and dtype (int), as MATRIX() in elements.cl declares them. A struct without pointers is
/// passed unchanged.
class Arguments {
 public:
  Arguments(const Api& cl, cl_kernel kernel) : cl_(cl), kernel_(kernel) {}

  template <class Value>
  void add(const Value& value) {
    if constexpr (std::is_pointer_v<Value>) {
      pointer(value);
    } else if constexpr (std::is_same_v<Value, Matrix>) {
      pointer(value.data);
      add(cl_long{value.stride});
      add(value.dtype);
    } else if constexpr (std::is_same_v<Value, LocalBytes>) {
      keep(cl_.clSetKernelArg(kernel_, next_++, value.bytes, nullptr));
    } else if constexpr (std::is_enum_v<Value> || std::is_same_v<Value, bool>) {
      add(static_cast<cl_int>(value));
    } else {
      static_assert(std::is_trivially_copyable_v<Value>);
      keep(cl_.clSetKernelArg(kernel_, next_++, sizeof value, &value));
    }
  }

  /// The first error, with the number of the argument.
  cl_int code() const { return code_; }

 private:
  void pointer(const void* value) {
    // Pass a null pointer as a null buffer: not every driver accepts it as shared memory.
    const cl_mem none = nullptr;
    keep(value != nullptr ? cl_.clSetKernelArgSVMPointer(kernel_, next_++, value)
                          : cl_.clSetKernelArg(kernel_, next_++, sizeof none, &none));
  }
  void keep(cl_int code) {
    if (code_ == CL_SUCCESS) code_ = code;
  }

  const Api& cl_;
  cl_kernel kernel_;
  cl_uint next_ = 0;
  cl_int code_ = CL_SUCCESS;
};

/// A bit for each pointer that is null, in the order of the arguments.
template <class... Args>
uint64_t null_pointers(const Args&... args) {
  uint64_t nulls = 0, bit = 1;
  const auto look = [&](const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    const void* pointer = &nulls;
    if constexpr (std::is_pointer_v<Value>) pointer = value;
    if constexpr (std::is_same_v<Value, Matrix>) pointer = value.data;
    if (pointer == nullptr) nulls |= bit;
    bit <<= 1;
  };
  (look(args), ...);
  return nulls;
}

/// Starts `kernel` with its arguments set. Errors: names the kernel.
Status start(const Queue& queue, Stream stream, const KernelName& name, cl_kernel kernel,
             int64_t groups, int64_t threads);

/// Enqueues `groups` work-groups of `threads` work-items, at most 2^22 groups. Kernels step over
/// their work by get_num_groups(0). Does nothing if `groups` is 0. Errors: the arguments or the
/// start of the kernel.
template <class... Args>
Status launch_kernel(const Queue& queue, Stream stream, const KernelName& name, cl_kernel made,
                     int64_t groups, int64_t threads, const Args&... args) {
  if (groups <= 0) return {};
  MORACLE_TRY(const cl_kernel kernel, queue.programs->twin(made, null_pointers(args...)));
  const std::lock_guard lock(queue.programs->arguments());
  Arguments arguments(*queue.cl, kernel);
  (arguments.add(args), ...);
  if (arguments.code() != CL_SUCCESS) {
    return Error{ErrorKind::kIo, name.file, std::string("kernel '") + name.kernel + "'",
                 "arguments that the driver takes", name_of(arguments.code())};
  }
  return start(queue, stream, name, kernel, groups, threads);
}

/// Overload for a kernel named by a constant of the program. Errors: also those of the compiler, at
/// the first call.
template <class... Args>
Status launch(const Queue& queue, Stream stream, const KernelName& name, int64_t groups,
              int64_t threads, const Args&... args) {
  if (groups <= 0) return {};
  MORACLE_TRY(const cl_kernel kernel, queue.programs->find(name));
  return launch_kernel(queue, stream, name, kernel, groups, threads, args...);
}

}  // namespace moracle::opencl
