// Shared memory: 32-bit addresses, and loads and stores of 16 bytes.
#pragma once

#include <cstdint>

namespace moracle::cuda {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
/// An operand in shared memory, given as a pointer or as the 32-bit address that instructions take.
struct SharedAddress {
  uint32_t value;
  __device__ SharedAddress(uint32_t address) : value(address) {}
  __device__ SharedAddress(const void* p) : value(shared_address(p)) {}
};

__device__ inline uint4 load_shared_16(SharedAddress from) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from.value)
               : "memory");
  return x;
}
__device__ inline void store_shared_16(SharedAddress to, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to.value), "r"(x.x), "r"(x.y),
               "r"(x.z), "r"(x.w)
               : "memory");
}
/// Predicated, so without a branch.
__device__ inline void store_shared_pair_if(int condition, SharedAddress to, float first,
                                            float second) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.shared.v2.f32 [%1], {%2, %3};\n}" ::"r"(
          condition),
      "r"(to.value), "f"(first), "f"(second)
      : "memory");
}

}  // namespace moracle::cuda
