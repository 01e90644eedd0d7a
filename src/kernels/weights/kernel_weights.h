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
  /// The column of x that each packed column reads. Only for act-order in a layout that sorts
  /// columns.
  ColumnOrders column_orders() const {
    return {buffer.as<std::byte>() + sections.group_index, static_cast<int64_t>(sections.bytes),
            shape.k, num_experts};
  }
};

/// Experts that other weights of the same layout, scheme and shape hold already.
struct PackedExperts {
  const KernelWeights* weights = nullptr;  ///< null: none
  std::vector<int32_t> at;                 ///< their expert for each expert to convert; -1: none

  const std::byte* find(int64_t e) const {
    return weights == nullptr || at[e] < 0 ? nullptr : weights->expert(at[e]);
  }
};

/// Reads, packs and releases experts on the device's threads. Memory never holds more than the
/// packed weights plus one expert, or plus several small experts of up to 64 MiB together. The
/// result's bytes do not depend on the threads. Consumes the description, so converting twice does
/// not compile. The caller's thread calls `progress`, which counts source bytes of this matrix.
/// `blocks` 2: the kernel reads equal shares of two halves of the rows together, gate and up. It
/// affects only memory placement (shares.h). `packed`: experts that are copied instead of read,
/// where the host sees the device's memory. Errors: reading (the first expert that cannot be read),
/// memory, kCancelled.
Result<KernelWeights> convert(DescribedMatrix&& from, const Layout& to, Device& device,
                              const Progress& progress = {}, int blocks = 1,
                              const PackedExperts& packed = {});

/// Enqueues a copy of `fresh` into `live`, which keeps its addresses. Both must have the same
/// layout, scheme, shape and number of experts.
Status replace(const KernelWeights& live, const KernelWeights& fresh, Device& device,
               Stream stream);

}  // namespace moracle
