// Code sets of layout vnni16 (layout/vnni16.h) to row blocks of int8.
#pragma once

#include "kernels/cpu/simd/vector.h"
#include "kernels/cpu/simd/vector_ops.h"
#include "quant/code_set.h"

namespace moracle::cpu {
namespace {

constexpr int kRowBlock = 64;  // bytes
constexpr int kRowBlockVecs = kRowBlock / (4 * kLanes);

/// The codes of numbers, four in a lane. Integers: the least one is `set`'s code of 0.
template <CodeSet set>
MORACLE_VECTOR_INLINE Bits codes_of(Bits numbers, const int8_t* book) {
  if constexpr (has_code_book(set)) {
    return lookup_bytes(book, numbers);
  } else if constexpr (set == CodeSet::kUnsigned5) {
    return numbers;
  } else {
    // With its top bit set no byte borrows from the next; that bit is then wrong.
    constexpr uint32_t kBytes = 0x01010101u, kLeast = static_cast<uint32_t>(-code_of(set, 0));
    return ((numbers | splat_bits(0x80 * kBytes)) - splat_bits(kLeast * kBytes)) ^
           splat_bits(0x80 * kBytes);
  }
}

template <CodeSet set>
void unpack_set(const UnpackArgs& args) {
  constexpr int kHigh = code_bits(set) - 4;         // bits beside the low four
  constexpr int kLow = kHigh == 0 ? 1 : 4 / kHigh;  // row blocks of low bits
  constexpr int kBlocks = kLow + (kHigh > 0 ? 1 : 0);
  const Bits four = splat_bits(0x0f0f0f0fu), upper = splat_bits(0x01010101u * ((1u << kHigh) - 1));
  const std::byte* from = args.from;
  std::byte* to = args.to;
  for (int64_t unit = 0; unit < args.units; ++unit) {
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kRowBlockVecs; ++v) {
      const auto at = [v](const std::byte* row_block) { return row_block + v * 4 * kLanes; };
      Bits high{};
      if constexpr (kHigh > 0) high = load_as<Bits>(at(from + kLow * kRowBlock));
      MORACLE_VECTOR_UNROLL
      for (int low = 0; low < kLow; ++low) {
        const Bits both = load_as<Bits>(at(from + low * kRowBlock));
        MORACLE_VECTOR_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int block = 2 * low + half;
          Bits numbers = (half == 0 ? both : both >> 4) & four;
          if constexpr (kHigh > 0) numbers |= (high >> (block * kHigh) & upper) << 4;
          store(to + block * kRowBlock + v * 4 * kLanes, codes_of<set>(numbers, args.code_book));
        }
      }
    }
    from += kBlocks * kRowBlock;
    to += 2 * kLow * kRowBlock;
  }
}

void unpack_codes(const UnpackArgs& args) {
  switch (args.set) {
    case CodeSet::kSigned6:
      return unpack_set<CodeSet::kSigned6>(args);
    case CodeSet::kSigned5:
      return unpack_set<CodeSet::kSigned5>(args);
    case CodeSet::kUnsigned5:
      return unpack_set<CodeSet::kUnsigned5>(args);
    case CodeSet::kAny:
      return;
    default:
      return unpack_set<CodeSet::kIq4>(args);
  }
}

}  // namespace
}  // namespace moracle::cpu
