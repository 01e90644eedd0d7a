// Kernels compiled on the device's own compiler at first use. Binaries are kept on disk.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "kernels/opencl/device/opencl_queue.h"

namespace moracle::opencl {

/// A kernel of a .cl file, with the compiler options of its variant.
struct KernelName {
  const char* file;               ///< "ops/rows.cl"
  const char* kernel;             ///< name of the function
  std::string options = {};       ///< "-D WEIGHT_I4"
  bool follows_pointers = false;  ///< reads pointers from device memory, such as a table of pages
};

class Programs {
 public:
  /// `cache`: folder of the binaries, created when first needed; empty: no cache. `compiling` is
  /// called with each file before the compiler runs, which takes up to seconds.
  Programs(const Queue& queue, std::string cache, std::function<void(std::string_view)> compiling)
      : queue_(queue), cache_(std::move(cache)), compiling_(std::move(compiling)) {}
  Programs(const Programs&) = delete;
  Programs& operator=(const Programs&) = delete;
  ~Programs();

  /// The kernel, compiled if this is the first call. Errors: the compiler's log; a kernel that the
  /// file lacks.
  Result<cl_kernel> make(const KernelName& name);
  /// Overload for a constant of the program: the lookup uses its address.
  Result<cl_kernel> find(const KernelName& name);

  /// Another object of the same kernel, for arguments of which those in `nulls` are null; the
  /// kernel itself if none is. (NVIDIA's driver refuses a kernel object whose argument was once
  /// shared memory and then null.)
  Result<cl_kernel> twin(cl_kernel kernel, uint64_t nulls);

  /// Hold it from setting a kernel's arguments until the kernel is enqueued: they belong to the
  /// kernel object.
  std::mutex& arguments() { return arguments_; }

  /// Number of compilations, and of programs loaded from disk.
  int64_t compiled() const { return compiled_; }
  int64_t loaded() const { return loaded_; }

 private:
  Result<cl_kernel> make_locked(const KernelName& name);
  Result<cl_program> program(const std::string& file, const std::string& options);
  Result<cl_program> build(const std::string& file, const std::string& text,
                           const std::string& options);

  const Queue& queue_;
  const std::string cache_;
  const std::function<void(std::string_view)> compiling_;
  std::mutex mutex_, arguments_;
  std::map<std::string, cl_program> programs_;  // by file and options
  std::map<std::string, cl_kernel> kernels_;    // by file, options and kernel
  std::unordered_map<const KernelName*, cl_kernel> found_;
  struct Origin {
    cl_program program;
    std::string name;
  };
  std::map<cl_kernel, Origin> origins_;
  std::map<std::pair<cl_kernel, uint64_t>, cl_kernel> twins_;
  int64_t compiled_ = 0, loaded_ = 0;
};

}  // namespace moracle::opencl
