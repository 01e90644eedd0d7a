#include "kernels/cpu/ukernels/ukernels.h"

#include <array>

#include "quant/code_set.h"

namespace moracle::cpu {
namespace ukernel_table {
namespace {

constexpr Operand x_i8 = Operand::kInt8, x_i16 = Operand::kInt16, x_bf16 = Operand::kBf16,
                  x_f32 = Operand::kF32;
constexpr DType w_i4 = DType::kI4, w_i8 = DType::kI8, w_e2m1 = DType::kF4E2M1,
                w_e4m3 = DType::kF8E4M3, w_bf16 = DType::kBF16, w_f16 = DType::kF16,
                w_f32 = DType::kF32;
[[maybe_unused]] constexpr UkernelIsa isa_portable = UkernelIsa::kPortable,
                                      isa_avx2 = UkernelIsa::kAvx2,
                                      isa_avxvnni = UkernelIsa::kAvxVnni,
                                      isa_avx512vnni = UkernelIsa::kAvx512Vnni,
                                      isa_avx512bf16 = UkernelIsa::kAvx512Bf16,
                                      isa_amx = UkernelIsa::kAmx;

constexpr DType w_u5 = DType::kI8, w_i6 = DType::kI8, w_iq4 = DType::kI8;
constexpr CodeSet set_i4 = CodeSet::kAny, set_i8 = CodeSet::kAny, set_u5 = CodeSet::kUnsigned5,
                  set_i6 = CodeSet::kSigned6, set_iq4 = CodeSet::kIq4;
constexpr DType scales_s8 = DType::kI8, scales_s16 = DType::kF16;

#define STEPS(w, scales, rows, isa, instruction)
#define DOT(x, w, rows, isa, instruction) \
  {x_##x, w_##w, rows, isa_##isa, instruction, dot_x_##x##_w_##w##_r##rows##_##isa},
#define UNPACK(from, to, isa)
#define PACK(from, to, isa)
constexpr DotKernel kDots[] = {
#include "kernels/cpu/ukernels/ukernels.inc"
};
#undef DOT
#undef UNPACK
#define DOT(x, w, rows, isa, instruction)
#define UNPACK(from, to, isa) {w_##from, x_##to, isa_##isa, unpack_##from##_to_##to##_##isa},
constexpr UnpackKernel kUnpacks[] = {
#include "kernels/cpu/ukernels/ukernels.inc"
};
#undef UNPACK
#undef PACK
#define UNPACK(from, to, isa)
#define PACK(from, to, isa) {w_##from, x_##to, isa_##isa, pack_##from##_to_##to##_##isa},
constexpr PackKernel kPacks[] = {
#include "kernels/cpu/ukernels/ukernels.inc"
};
#undef PACK
#undef STEPS
#define PACK(from, to, isa)
#define STEPS(w, scales, rows, isa, instruction) \
  {w_##w,                                        \
   set_##w,                                      \
   scales_##scales,                              \
   rows,                                         \
   isa_##isa,                                    \
   instruction,                                  \
   dot_steps_##w##_##scales##_r##rows##_##isa},
#if defined(__x86_64__)
constexpr StepKernel kSteps[] = {
#include "kernels/cpu/ukernels/ukernels.inc"
};
#else
constexpr std::array<StepKernel, 0> kSteps;
#endif
#undef DOT
#undef UNPACK
#undef PACK
#undef STEPS

template <class Kernels, class Matches>
auto find(const Kernels& kernels, uint8_t isas, const Matches& matches) -> decltype(&kernels[0]) {
  for (const auto& kernel : kernels) {
    if ((static_cast<uint8_t>(kernel.isa) & isas) != 0 && matches(kernel)) return &kernel;
  }
  return nullptr;
}

constexpr uint8_t with(UkernelIsa a, UkernelIsa b) {
  return static_cast<uint8_t>(static_cast<uint8_t>(a) | static_cast<uint8_t>(b));
}

}  // namespace
}  // namespace ukernel_table

using namespace ukernel_table;

const DotKernel* UkernelSet::dot(Operand x, DType w) const {
  return find(kDots, isas, [&](const DotKernel& k) { return k.x == x && k.w == w; });
}
const StepKernel* UkernelSet::steps(const QuantKey& key, int rows) const {
  // One kernel serves all code books.
  const CodeSet set = has_code_book(key.codes) ? CodeSet::kIq4 : key.codes;
  return find(kSteps, isas, [&](const StepKernel& k) {
    return k.dtype == key.dtype && k.codes == set && k.scales == key.scale_dtype && k.rows >= rows;
  });
}
const UnpackKernel* UkernelSet::unpack(DType from, Operand to) const {
  return find(kUnpacks, isas, [&](const UnpackKernel& k) { return k.from == from && k.to == to; });
}
const PackKernel* UkernelSet::pack(DType from, Operand to) const {
  return find(kPacks, isas, [&](const PackKernel& k) { return k.from == from && k.to == to; });
}

std::optional<DType> operand_dtype(Operand x) {
  switch (x) {
    case Operand::kInt8:
      return DType::kI8;
    case Operand::kBf16:
      return DType::kBF16;
    case Operand::kF32:
      return DType::kF32;
    default:
      return {};
  }
}

const UkernelSet& ukernels([[maybe_unused]] DotIsa isa) {
  static const UkernelSet kPortable = {
      .isas = with(isa_portable, isa_portable), .needs = Isa::kNone, .prefetch_rows = 4};
#if defined(__x86_64__)
  constexpr Isa kVnni = Isa::kAvx512 | Isa::kAvx512Vnni;
  // More than two rows are multiplied by one panel after the other.
  static const UkernelSet kAvx2 = {.isas = with(isa_avx2, isa_avx2),
                                   .needs = Isa::kAvx2,
                                   .skinny_rows = 12,
                                   .prefetch_rows = 2,
                                   .floats_in_limbs = true};
  static const UkernelSet kAvxVnni = {.isas = with(isa_avxvnni, isa_avx2),
                                      .needs = Isa::kAvx2 | Isa::kAvxVnni,
                                      .skinny_rows = 12,
                                      .prefetch_rows = 2,
                                      .floats_in_limbs = true};
  static const UkernelSet kAvx512 = {.isas = with(isa_avx512vnni, isa_avx512vnni),
                                     .needs = kVnni,
                                     .order = ColumnOrder::kUnpacked,
                                     .prefetch_distance = 64,
                                     .floats_in_limbs = true};
  static const UkernelSet kAvx512Bf16 = {.isas = with(isa_avx512bf16, isa_avx512vnni),
                                         .needs = kVnni | Isa::kAvx512Bf16,
                                         .order = ColumnOrder::kUnpacked,
                                         .prefetch_distance = 64,
                                         .floats_in_limbs = true};
  static const UkernelSet kAmx = {.isas = with(isa_amx, isa_avx512vnni),
                                  .needs = kVnni | Isa::kAmxInt8 | Isa::kAmxBf16,
                                  .order = ColumnOrder::kUnpacked,
                                  .begin = begin_amx,
                                  .end = end_amx,
                                  .keep_awake = keep_amx_awake,
                                  .prefetch_distance_16 = 0};
  switch (isa) {
    case DotIsa::kAvx2:
      return kAvx2;
    case DotIsa::kAvxVnni:
      return kAvxVnni;
    case DotIsa::kAvx512:
      return kAvx512;
    case DotIsa::kAvx512Bf16:
      return kAvx512Bf16;
    case DotIsa::kAmx:
      return kAmx;
    case DotIsa::kPortable:
      break;
  }
#endif
  return kPortable;
}

}  // namespace moracle::cpu
