// Sends one expert's slices to a device. The device packs the codes if it can; otherwise the host
// does. The host packs everything else.
#pragma once

#include <memory>

#include "kernels/weights/kernel_weights.h"
#include "kernels/weights/uploads.h"

namespace moracle {

class ExpertSender {
 public:
  ExpertSender(const KernelWeights& weights, Uploads& uploads)
      : weights_(weights),
        uploads_(uploads),
        packs_(uploads.packs(*weights.layout, weights.shape)) {}

  /// Scratch for the host-packed part of one expert. It has the size of the whole expert, but only
  /// written pages take memory: little if the device packs the codes.
  using Scratch = std::unique_ptr<std::byte[]>;
  Scratch scratch() const { return Scratch(new std::byte[weights_.sections.bytes]); }

  /// Sends a slice of expert e: its rows from `first_row` on. Send the first slice first.
  Status send(int64_t e, const CanonicalMatrix& slice, int64_t first_row, ThreadPool& pool,
              const Scratch& scratch) const;
  /// Sends the rest of expert e, after its last slice.
  Status send_rest(int64_t e, ThreadPool& pool, const Scratch& scratch) const;

 private:
  std::byte* base_of(int64_t e) const {
    return weights_.buffer.as<std::byte>() + e * static_cast<int64_t>(weights_.sections.bytes);
  }

  const KernelWeights& weights_;
  Uploads& uploads_;
  const bool packs_;
};

}  // namespace moracle
