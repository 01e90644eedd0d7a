// Shared by the tests of the micro-kernels: aligned row blocks, and every set with its CPU
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

/// Row blocks on a 64-byte boundary.
class RowBlocks {
 public:
  explicit RowBlocks(int64_t row_blocks) : bytes_((row_blocks + 1) * kRowBlockBytes) {}
  std::byte* data() {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (kRowBlockBytes - at % kRowBlockBytes) % kRowBlockBytes;
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
  const UkernelSet* kernels;
  Operand arithmetic;
  Isa needs;
  const char* name;
};
inline constexpr Isa kAvxVnni = Isa::kAvx2 | Isa::kAvxVnni;
inline const KernelCase kCases[] = {
    {&ukernels(DotIsa::kPortable), Operand::kInt8, Isa::kNone, "portable_int8"},
    {&ukernels(DotIsa::kPortable), Operand::kF32, Isa::kNone, "portable_f32"},
    {&ukernels(DotIsa::kAvx2), Operand::kInt8, Isa::kAvx2, "avx2_int8"},
    {&ukernels(DotIsa::kAvx2), Operand::kF32, Isa::kAvx2, "avx2_f32"},
    {&ukernels(DotIsa::kAvxVnni), Operand::kInt8, kAvxVnni, "avx_vnni_int8"},
    {&ukernels(DotIsa::kAvxVnni), Operand::kF32, kAvxVnni, "avx_vnni_f32"},
    {&ukernels(DotIsa::kAvx512), Operand::kInt8, kVnni, "avx512_int8"},
    {&ukernels(DotIsa::kAvx512), Operand::kF32, kVnni, "avx512_f32"},
    {&ukernels(DotIsa::kAvx512Bf16), Operand::kBf16, kVnni | Isa::kAvx512Bf16, "avx512_bf16"},
    {&ukernels(DotIsa::kAmx), Operand::kInt8, kVnni | Isa::kAmxInt8, "amx_int8"},
    {&ukernels(DotIsa::kAmx), Operand::kBf16, kVnni | Isa::kAmxBf16, "amx_bf16"},
};

inline std::vector<KernelCase> int8_cases() {
  std::vector<KernelCase> cases;
  for (const KernelCase& c : kCases) {
    if (c.arithmetic == Operand::kInt8) cases.push_back(c);
  }
  return cases;
}

class DotKernels : public ::testing::TestWithParam<KernelCase> {
 protected:
  void SetUp() override {
    if (!has(GetParam().needs)) GTEST_SKIP() << "needs " << names(GetParam().needs);
  }
  // Small integers: exact in every arithmetic and summation order.
  static constexpr int64_t kNumBlocks = 32;
  int columns_per_block() const {
    return GetParam().arithmetic == Operand::kInt8   ? 4
           : GetParam().arithmetic == Operand::kBf16 ? 2
                                                     : 1;
  }
  void put(std::byte* at, int64_t i, int value) const {
    switch (GetParam().arithmetic) {
      case Operand::kInt8:
        at[i] = static_cast<std::byte>(value);
        break;
      case Operand::kBf16:
        reinterpret_cast<uint16_t*>(at)[i] = float_to_bf16(static_cast<float>(value));
        break;
      case Operand::kF32:
        reinterpret_cast<float*>(at)[i] = static_cast<float>(value);
        break;
      case Operand::kInt16:  // multiplies codes, not row blocks
        break;
    }
  }
  const bool in_limbs_ = GetParam().kernels == &ukernels(DotIsa::kAmx);
  // Activation codes within the limits of DotArgs.
  const int least_x_ = GetParam().kernels == &ukernels(DotIsa::kAvx2) ? -127 : -128;
  /// Multiplies rows by weights stored in this type.
  void multiply(DType w, const DotArgs& args) const {
    const UkernelSet& kernels = *GetParam().kernels;
    if (kernels.begin != nullptr) kernels.begin();
    kernels.dot(GetParam().arithmetic, w)->fn(args);
    if (kernels.end != nullptr) kernels.end();
  }
  /// Multiplies rows by weights of their own type.
  void multiply(const DotArgs& args) const {
    multiply(*operand_dtype(GetParam().arithmetic), args);
  }
};

inline std::string case_name(const ::testing::TestParamInfo<KernelCase>& info) {
  return info.param.name;
}

}  // namespace moracle::cpu

#endif
