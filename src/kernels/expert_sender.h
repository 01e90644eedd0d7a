// One expert's pieces on their way to a device: codes packed there where it can, else here;
// everything beside them here.
#pragma once

#include <memory>

#include "kernels/kernel_weights.h"
#include "kernels/uploads.h"

namespace moracle {

class ExpertSender {
 public:
  ExpertSender(const KernelWeights& weights, Uploads& uploads)
      : weights_(weights),
        uploads_(uploads),
        packs_(uploads.packs(*weights.layout, weights.shape)) {}

  /// What is packed here of one expert. As large as all of it, but only what is written to takes
  /// memory: without the codes that the device packs, little.
  using Scratch = std::unique_ptr<std::byte[]>;
  Scratch scratch() const { return Scratch(new std::byte[weights_.sections.bytes]); }

  /// A piece of expert e, which is its rows from `first_row` on; the first comes first.
  Status send(int64_t e, const CanonicalMatrix& piece, int64_t first_row, ThreadPool& pool,
              const Scratch& scratch) const;
  /// After the last piece.
  Status send_rest(int64_t e, ThreadPool& pool, const Scratch& scratch) const;

 private:
  std::byte* place(int64_t e) const {
    return weights_.buffer.as<std::byte>() + e * static_cast<int64_t>(weights_.sections.bytes);
  }

  const KernelWeights& weights_;
  Uploads& uploads_;
  const bool packs_;
};

}  // namespace moracle
