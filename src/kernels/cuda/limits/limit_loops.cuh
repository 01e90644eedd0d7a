// Loops that run one operation as fast as the GPU can: read memory in order, or multiply and add in
// registers and shared memory. Operands look random: zeros take less power, and then less time.
#pragma once

#include <cstdint>

#include "kernels/limits.h"

namespace moracle::cuda {

/// Features that a loop needs and that some GPUs or builds lack.
enum class LoopNeeds : uint32_t {
  kNothing = 0,
  kMma = 1 << 0,     ///< mma.sync of bf16: compute capability 8.0
  kMmaFp8 = 1 << 1,  ///< mma.sync of e4m3: compute capability 8.9
  kWgmma = 1 << 2,   ///< wgmma: compute capability 9.0, in code built only for it
};

struct LimitLoop {
  std::string_view name;
  Arithmetic arithmetic;
  LoopNeeds needs;
  void (*run)(int64_t rounds, uint32_t* out);
  int threads;
  int blocks_per_processor;
  double ops_per_round;  ///< operations of one block
};
std::span<const LimitLoop> limit_loops();

/// Writes the LoopNeeds that the code for this GPU was compiled with.
using WriteNeeds = void (*)(uint32_t* out);
WriteNeeds compiled_needs();

/// Threads per block of the read loop, and 16-byte lines that each thread reads.
constexpr int kReadThreads = 256, kReadAtOnce = 8;
using ReadLoop = void (*)(const uint4* from, int64_t count, uint32_t* out);
ReadLoop read_loop();
/// Fills memory with incompressible data.
using FillLoop = void (*)(uint4* to, int64_t count);
FillLoop fill_loop();

}  // namespace moracle::cuda
