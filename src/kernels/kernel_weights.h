// Weights in a kernel's layout, on the kernel's device.
#pragma once

#include "kernels/ops.h"
#include "layout/layout.h"
#include "moracle/checkpoint.h"
#include "moracle/device.h"

namespace moracle {

struct KernelWeights {
  const Layout* layout = nullptr;
  Scheme scheme;
  MatrixShape shape;
  int64_t num_experts = 0;
  Sections sections;
  Buffer buffer;        ///< num_experts times sections.bytes
  Buffer input_scales;  ///< [num_experts] f32, static activation schemes only

  const std::byte* expert(int64_t e) const {
    return buffer.as<std::byte>() + e * static_cast<int64_t>(sections.bytes);
  }
  /// Which column of x each packed column reads. Only for act-order in a layout that sorts columns.
  ColumnOrders column_orders() const {
    return {buffer.as<std::byte>() + sections.group_index, static_cast<int64_t>(sections.bytes),
            shape.k, num_experts};
  }
};

/// Reads, packs and lets go of experts, with the threads of the device: memory never holds more
/// than the packed weights and one expert, or as many small ones at once as make up to 64 MiB. The
/// bytes do not depend on the threads. Consumes the description: converting twice does not compile.
/// `progress` is called by the caller's thread and counts source bytes of this matrix. Errors:
/// reading (of several experts that cannot be read, the first), memory, kCancelled. `blocks` 2 says
/// that the kernel reads equal shares of two halves of the rows together, gate and up; it matters
/// only for where memory lies (shares.h).
Result<KernelWeights> convert(DescribedMatrix&& from, const Layout& to, Device& device,
                              const Progress& progress = {}, int blocks = 1);

/// Enqueues: what `live` holds becomes what `fresh` holds, at the addresses of `live`. Both are of
/// one layout, scheme, shape and number of experts.
Status replace(const KernelWeights& live, const KernelWeights& fresh, Device& device,
               Stream stream);

}  // namespace moracle
