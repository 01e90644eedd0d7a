// Measured limits of a device: its read bandwidth and its peak operations per second.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/device.h"

namespace moracle {

/// Type of the operands; sums are f32 or i32.
enum class Arithmetic : uint8_t { kF32, kF16, kBf16, kInt8, kFp8 };

/// The most operations per second. A product and its addition count as two operations.
struct Peak {
  std::string_view name;         ///< "int8 avx512_vnni"
  std::string_view instruction;  ///< the last word of the name: "avx512_vnni"
  Arithmetic arithmetic = Arithmetic::kF32;
  double ops_per_second = 0;
};

struct Limits {
  int threads = 1;           ///< of a CPU
  int64_t buffer_bytes = 0;  ///< buffer size that the runs read in turn
  double read_bytes_per_second = 0;
  std::vector<Peak> peaks;  ///< of the device's instructions; empty: unknown
  std::string device = "cpu";
  std::string model;  ///< of a GPU
};

/// Measures with its own memory. Every number is the median of a few runs.
class LimitsProbe {
 public:
  virtual ~LimitsProbe() = default;

  virtual int64_t buffer_bytes() const = 0;
  /// The device's memory, including the probe's: installed memory for a CPU, free memory for a GPU.
  virtual int64_t memory_bytes() const = 0;
  /// Measures all limits: about 1.5 s on a CPU, less on a GPU. Errors: kCancelled.
  virtual Result<Limits> measure(const Progress& progress = {}) = 0;
  /// Bytes per second of reads in order; takes tens of milliseconds.
  virtual Result<double> read_bytes_per_second() = 0;
  /// Bytes per second from pinned host memory; 0 if the host writes the device's memory directly.
  virtual Result<double> copy_bytes_per_second() { return 0.0; }
  /// Measures one of measure()'s peaks again; 0 for an unknown name.
  virtual Result<double> ops_per_second(std::string_view peak) = 0;
};

/// `threads`: of a CPU. `buffer_bytes` 0: large enough that caches hold only a negligible share.
/// Errors: memory; a device whose limits cannot be measured; kCancelled.
Result<std::unique_ptr<LimitsProbe>> open_limits(const std::shared_ptr<Device>& device, int threads,
                                                 size_t buffer_bytes = 0,
                                                 const Progress& progress = {});

/// Calls `progress`, if there is one. Errors: kCancelled.
Status go_on_measuring(const Progress& progress);

}  // namespace moracle
