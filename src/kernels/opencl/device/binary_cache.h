// Compiled programs on disk: one file per source, options, device and driver.
#pragma once

#include <string>

#include "kernels/opencl/device/opencl_queue.h"

namespace moracle::opencl {

/// A program's entry in the cache. A file that is damaged, or from another device or driver, counts
/// as absent. No function reports an error: without a cache the program is compiled again.
class BinaryCache {
 public:
  /// `folder`: empty means no cache.
  BinaryCache(const Queue& queue, const std::string& folder, const std::string& source,
              const std::string& options);

  /// The program, ready for kernels; null if the cache has none.
  cl_program load() const;
  /// Writes the program's binary to a temporary file in the folder, then renames it.
  void keep(cl_program program) const;

  const std::string& path() const { return path_; }

 private:
  const Queue& queue_;
  std::string options_, key_, path_;
};

}  // namespace moracle::opencl
