// Weights on their way into the memory of a device that the host cannot write to.
#pragma once

#include <memory>

#include "layout/layout.h"
#include "moracle/device.h"

namespace moracle {

/// Several threads may send at once. Nothing that was sent may be relied on before finish().
class Uploads {
 public:
  virtual ~Uploads() = default;
  /// Enqueues; `from` may go when it returns.
  virtual Status send(std::byte* to, const std::byte* from, size_t bytes) = 0;
  /// Whether the device puts the codes of such a matrix into this layout by itself.
  virtual bool packs(const Layout& layout, const MatrixShape& shape) const = 0;
  /// Enqueues, where it does: rows [begin, end) of a piece, which is the rows from `first_row` on
  /// of the expert whose codes, all 0 before, are at `codes`. The piece may go when it returns.
  virtual Status send_rows(const Layout& layout, const MatrixShape& shape,
                           const CanonicalMatrix& piece, int64_t first_row, int64_t begin,
                           int64_t end, std::byte* codes) = 0;
  /// Waits for all of it; to be called in any case, before the memory may go. Errors: what went
  /// wrong on the way.
  virtual Status finish() = 0;
};

/// A GPU's go through pinned memory that is filled while other parts of it travel; of any other
/// device, one after another by its upload(), and it packs nothing.
std::unique_ptr<Uploads> open_uploads(Device& device);

}  // namespace moracle
