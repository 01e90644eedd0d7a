#pragma once

namespace moracle::cuda {

/// Programmatic dependent launch (PDL): the neighbour in the stream that a kernel may overlap with.
enum class Overlap {
  kNone,      ///< none: waits for earlier kernels; later kernels may start once it has begun
  kPrevious,  ///< the previous kernel. It must not write this kernel's inputs or touch its outputs,
              ///< and must let later kernels start only after its own wait.
  kNext,      ///< the next kernel, which may start before the kernel before this one is complete.
              ///< Before its own wait it must not read the outputs of that kernel.
};

}  // namespace moracle::cuda
