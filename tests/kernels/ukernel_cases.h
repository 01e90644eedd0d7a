// Shared by the tests of the line kernels: aligned lines, and every kernel table with its CPU
// requirements.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/scalar.h"
#include "kernels/cpu/ukernels/ukernels.h"
#include "kernels/isa_here.h"

#if defined(__x86_64__)

namespace moracle::cpu {

inline constexpr Isa kVnni = Isa::kAvx512 | Isa::kAvx512Vnni;

/// A byte buffer on a 64-byte boundary.
class Lines {
 public:
  explicit Lines(int64_t lines) : bytes_((lines + 1) * kLineBytes) {}
  std::byte* data() {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (kLineBytes - at % kLineBytes) % kLineBytes;
  }
  template <class T>
  T at(int64_t i) {
    T value;
    std::memcpy(&value, data() + i * static_cast<int64_t>(sizeof value), sizeof value);
    return value;
  }

 private:
  std::vector<std::byte> bytes_;
};

struct KernelCase {
  const LineKernels* kernels;
  LineArithmetic arithmetic;
  Isa needs;
  const char* name;
};
inline constexpr Isa kAvxVnni = Isa::kAvx2 | Isa::kAvxVnni;
inline const KernelCase kCases[] = {
    {&kPortableLines, LineArithmetic::kInt8, Isa::kNone, "portable_int8"},
    {&kPortableLines, LineArithmetic::kF32, Isa::kNone, "portable_f32"},
    {&kAvx2Lines, LineArithmetic::kInt8, Isa::kAvx2, "avx2_int8"},
    {&kAvx2Lines, LineArithmetic::kF32, Isa::kAvx2, "avx2_f32"},
    {&kAvxVnniLines, LineArithmetic::kInt8, kAvxVnni, "avx_vnni_int8"},
    {&kAvxVnniLines, LineArithmetic::kF32, kAvxVnni, "avx_vnni_f32"},
    {&kAvx512Lines, LineArithmetic::kInt8, kVnni, "avx512_int8"},
    {&kAvx512Lines, LineArithmetic::kF32, kVnni, "avx512_f32"},
    {&kAvx512Bf16Lines, LineArithmetic::kBf16, kVnni | Isa::kAvx512Bf16, "avx512_bf16"},
    {&kAmxLines, LineArithmetic::kInt8, kVnni | Isa::kAmxInt8, "amx_int8"},
    {&kAmxLines, LineArithmetic::kBf16, kVnni | Isa::kAmxBf16, "amx_bf16"},
};

inline std::vector<KernelCase> int8_cases() {
  std::vector<KernelCase> cases;
  for (const KernelCase& c : kCases) {
    if (c.arithmetic == LineArithmetic::kInt8) cases.push_back(c);
  }
  return cases;
}

class LineBlocks : public ::testing::TestWithParam<KernelCase> {
 protected:
  void SetUp() override {
    if (!has(GetParam().needs)) GTEST_SKIP() << "needs " << names(GetParam().needs);
  }
  // Small integers: exact in every arithmetic and summation order.
  static constexpr int64_t kNumLines = 32;
  int per_line() const {
    return GetParam().arithmetic == LineArithmetic::kInt8   ? 4
           : GetParam().arithmetic == LineArithmetic::kBf16 ? 2
                                                            : 1;
  }
  void put(std::byte* at, int64_t i, int value) const {
    switch (GetParam().arithmetic) {
      case LineArithmetic::kInt8:
        at[i] = static_cast<std::byte>(value);
        break;
      case LineArithmetic::kBf16:
        reinterpret_cast<uint16_t*>(at)[i] = float_to_bf16(static_cast<float>(value));
        break;
      case LineArithmetic::kF32:
        reinterpret_cast<float*>(at)[i] = static_cast<float>(value);
        break;
      case LineArithmetic::kInt16:  // multiplies codes, not lines
        break;
    }
  }
  const bool in_parts_ = GetParam().kernels == &kAmxLines;
  // Activation codes within the limits of LineBlock.
  const int least_x_ = GetParam().kernels == &kAvx2Lines ? -127 : -128;
  void multiply(const LineBlock& block) const {
    const LineKernels& k = *GetParam().kernels;
    if (k.begin != nullptr) k.begin();
    switch (GetParam().arithmetic) {
      case LineArithmetic::kInt8:
        k.int8(block);
        break;
      case LineArithmetic::kBf16:
        k.bf16(block);
        break;
      case LineArithmetic::kF32:
        k.f32(block);
        break;
      case LineArithmetic::kInt16:
        break;
    }
    if (k.end != nullptr) k.end();
  }
};

inline std::string case_name(const ::testing::TestParamInfo<KernelCase>& info) {
  return info.param.name;
}

}  // namespace moracle::cpu

#endif
