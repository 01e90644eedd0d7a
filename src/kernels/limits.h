// What a device can do at most, measured: the two limits that every kernel is held against.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/device.h"

namespace moracle {

/// What is multiplied; sums are f32 or i32.
enum class Arithmetic : uint8_t { kF32, kF16, kBf16, kInt8, kFp8 };

/// The most operations per second, a product and its addition being two.
struct Peak {
  std::string_view name;         ///< "int8 avx512_vnni"
  std::string_view instruction;  ///< the last word of the name: "avx512_vnni"
  Arithmetic arithmetic = Arithmetic::kF32;
  double ops_per_second = 0;
};

struct Limits {
  int threads = 1;           ///< of a CPU
  int64_t buffer_bytes = 0;  ///< that were read in turn
  double read_bytes_per_second = 0;
  std::vector<Peak> peaks;  ///< of the instructions that the device has; none: none are known
  std::string device = "cpu";
  std::string model;  ///< of a GPU
};

/// Measures with memory of its own. Every number is the median of a few runs.
class LimitsProbe {
 public:
  virtual ~LimitsProbe() = default;

  virtual int64_t buffer_bytes() const = 0;
  /// What the device has, the probe's included: of a CPU installed, of a GPU free.
  virtual int64_t memory_bytes() const = 0;
  /// Everything; takes about a second and a half on a CPU, less on a GPU. Errors: kCancelled.
  virtual Result<Limits> measure(const Progress& progress = {}) = 0;
  /// Bytes per second, in order; tens of milliseconds.
  virtual Result<double> read_bytes_per_second() = 0;
  /// Bytes per second from pinned memory of the host; 0 where the host writes there itself.
  virtual Result<double> copy_bytes_per_second() { return 0.0; }
  /// One of measure()'s peaks again; 0 of a name that is none.
  virtual Result<double> ops_per_second(std::string_view peak) = 0;
};

/// `threads` are a CPU's. `buffer_bytes` 0: large enough that no cache holds a share of it that
/// matters. Errors: memory; a device whose limits cannot be measured; kCancelled.
Result<std::unique_ptr<LimitsProbe>> open_limits(const std::shared_ptr<Device>& device, int threads,
                                                 size_t buffer_bytes = 0,
                                                 const Progress& progress = {});

/// Asks `progress`, if there is one. Errors: kCancelled.
Status go_on_measuring(const Progress& progress);

}  // namespace moracle
