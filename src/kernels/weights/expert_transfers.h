// Experts that go from host memory, packed for the host, into memory of a device, packed for it.
#pragma once

#include <memory>
#include <span>

#include "layout/layout.h"
#include "moracle/device.h"

namespace moracle {

/// One matrix of an expert. `to_shape` is the shape that the layout `to` packs.
struct ExpertMatrix {
  const Layout* from = nullptr;
  const MatrixShape* from_shape = nullptr;
  const std::byte* packed = nullptr;  ///< host memory, which stays as it is
  const Layout* to = nullptr;
  const MatrixShape* to_shape = nullptr;
  std::byte* out = nullptr;  ///< the device's memory
};

/// Experts that one transfer moves at most, and transfers that a device may have on their way in
/// memory of its own.
inline constexpr int64_t kTransferExperts = 4;
inline constexpr int64_t kTransferBuffers = 4;

/// All calls hold the device's lock.
class ExpertTransfers {
 public:
  /// Work on the device that a transfer must wait for.
  using Mark = std::shared_ptr<void>;

  virtual ~ExpertTransfers() = default;
  /// A transfer of these matrices runs beside other work of the device. Otherwise begin() enqueues
  /// it in the stream.
  virtual bool in_background(std::span<const ExpertMatrix> matrices) const = 0;
  /// Enqueues a transfer of at most kTransferExperts experts of one layer, which writes `out` after
  /// `mark`'s work: the first matrices of all experts, then their second ones. Requires repacks()
  /// for each matrix. Returns its number. Errors: those of repack() and of the device.
  virtual Result<int64_t> begin(std::span<const ExpertMatrix> matrices, const Mark& mark,
                                Stream stream) = 0;
  /// Everything enqueued on the stream so far. Null where begin() runs in stream order.
  virtual Result<Mark> mark(Stream stream) = 0;
  /// Transfers up to this number are complete.
  virtual Result<bool> arrived(int64_t number) = 0;
  /// Later work on the stream waits for the transfers up to this number.
  virtual Status wait(int64_t number, Stream stream) = 0;
  /// The host waits for all transfers.
  virtual Status finish() = 0;
};

/// Packs on host threads, in stream order. `max_bytes`: of the largest expert as the device packs
/// it. Errors: memory.
Result<std::unique_ptr<ExpertTransfers>> plain_transfers(Device& device, int64_t max_bytes);

}  // namespace moracle
