// Memory of each rank's GPU that all ranks of a host can write to.
#pragma once

#include <array>

#include "kernels/cuda/device/cuda_device.h"
#include "moracle/parallel.h"

namespace moracle {

inline constexpr int kMostPeers = 8;

class PeerMemory {
 public:
  /// Allocates `bytes`, zeroed, on this rank's GPU and opens the memory of all others. Returns when
  /// every rank has done so. Errors: a GPU that cannot reach another one; memory; those of the
  /// group.
  static Result<PeerMemory> open(Group& group, CudaDevice& device, size_t bytes);
  PeerMemory(PeerMemory&& other) noexcept = default;
  PeerMemory& operator=(PeerMemory&&) = delete;
  ~PeerMemory();
  /// By rank; the own rank's too.
  const std::array<std::byte*, kMostPeers>& all() const { return all_; }

 private:
  explicit PeerMemory(int device) : device_(device) {}
  int device_;
  // The own memory, and that of other ranks of this process: a rank that ends must not take its
  // memory from kernels that still write to it. Between processes the driver sees to that.
  std::vector<std::shared_ptr<Buffer>> kept_;
  std::array<std::byte*, kMostPeers> all_{};
  std::vector<std::byte*> opened_;  // of other processes
};

}  // namespace moracle
