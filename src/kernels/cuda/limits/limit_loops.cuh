// Loops that do one thing as fast as a GPU can: read memory in order, or multiply and add in
// registers and shared memory. On numbers that look random: zeros take less power, and then less
// time.
#pragma once

#include <cstdint>

#include "kernels/limits.h"

namespace moracle::cuda {

/// What a loop needs that not every GPU, or not every build, has.
enum class LoopNeeds : uint32_t {
  kNothing = 0,
  kMma = 1 << 0,     ///< mma.sync of bf16: 8.0
  kMmaFp8 = 1 << 1,  ///< and of e4m3: 8.9
  kWgmma = 1 << 2,   ///< 9.0, in code that is for it alone
};

struct LimitLoop {
  std::string_view name;
  Arithmetic arithmetic;
  LoopNeeds needs;
  void (*run)(int64_t rounds, uint32_t* out);
  int threads;
  int blocks_per_processor;
  double ops_per_round;  ///< of one block
};
std::span<const LimitLoop> limit_loops();

/// Writes the LoopNeeds that the code which this GPU runs was compiled with.
using WriteNeeds = void (*)(uint32_t* out);
WriteNeeds compiled_needs();

/// Threads of the reading loop's blocks, and how many lines of 16 bytes each of them reads.
constexpr int kReadThreads = 256, kReadAtOnce = 8;
using ReadLoop = void (*)(const uint4* from, int64_t count, uint32_t* out);
ReadLoop read_loop();
/// Fills memory with what cannot be compressed.
using FillLoop = void (*)(uint4* to, int64_t count);
FillLoop fill_loop();

}  // namespace moracle::cuda
