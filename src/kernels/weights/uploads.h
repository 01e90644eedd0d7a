// Uploads weights to the memory of a device that the host cannot write to.
#pragma once

#include <memory>

#include "layout/layout.h"
#include "moracle/device.h"

namespace moracle {

/// Several threads may send at once. Callers must not rely on sent data before finish().
class Uploads {
 public:
  virtual ~Uploads() = default;
  /// Enqueues an upload. The caller may free `from` on return.
  virtual Status send(std::byte* to, const std::byte* from, size_t bytes) = 0;
  /// Whether the device itself packs the codes of such a matrix into this layout. Most do not.
  virtual bool packs(const Layout&, const MatrixShape&) const { return false; }
  /// Enqueues rows [begin, end) of a slice, if packs() is true. The slice holds the rows from
  /// `first_row` on of an expert. The expert's codes at `codes` must be 0 before. The caller may
  /// free the slice on return.
  virtual Status send_rows(const Layout& layout, const MatrixShape& shape,
                           const CanonicalMatrix& slice, int64_t first_row, int64_t begin,
                           int64_t end, std::byte* codes);
  /// Waits for all uploads. Must always be called before the memory is freed. Errors: those of the
  /// uploads.
  virtual Status finish() = 0;
};

/// For a GPU: uploads through pinned memory that is filled while other parts transfer. For any
/// other device: calls its upload() for one slice after another, and packs nothing.
std::unique_ptr<Uploads> open_uploads(Device& device);

}  // namespace moracle
