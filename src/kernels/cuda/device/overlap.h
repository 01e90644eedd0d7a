#pragma once

namespace moracle::cuda {

/// The neighbour in the stream that a kernel may overlap with (programmatic dependent launch, PDL).
enum class Overlap {
  kNone,      ///< waits for the kernels before it; later ones start when it has begun
  kPrevious,  ///< the kernel before, which must not write what this one reads, or touch what it
              ///< writes, and must let later kernels start only after its own wait
  kNext,  ///< the kernel after, which may start before the one before this is complete, and must
          ///< not read what that one writes before its own wait
};

}  // namespace moracle::cuda
