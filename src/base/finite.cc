#include "base/finite.h"

#include <algorithm>
#include <cstring>

namespace moracle {
namespace {

// In these types a number is not finite if all bits of a mask are set.
template <class Word>
bool is_bad(Word word, Word mask) {
  return (word & mask) == mask;
}

// The compilers' vector types, with a size that SSE2 and NEON support.
constexpr int64_t kBytes = 16;

template <class Word>
int64_t find(const std::byte* data, int64_t count, Word mask) {
  using Vector __attribute__((vector_size(kBytes))) = Word;
  constexpr int64_t kSize = sizeof(Word), kLanes = kBytes / kSize;
  // One test for many vectors, because a bad number is rare.
  constexpr int64_t kStep = 32 * kLanes;
  const Vector masks = Vector{} + mask;
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    Vector bad = {};
    for (int64_t j = i; j < i + kStep; j += kLanes) {
      Vector words;
      std::memcpy(&words, data + j * kSize, sizeof words);
      bad |= reinterpret_cast<Vector>((words & masks) == masks);
    }
    uint64_t any[2];
    std::memcpy(any, &bad, sizeof any);
    if ((any[0] | any[1]) != 0) break;
  }
  for (; i < count; ++i) {
    Word word;
    std::memcpy(&word, data + i * kSize, sizeof word);
    if (is_bad(word, mask)) return i;
  }
  return -1;
}

// The f16 scales and minimums of a block of GGUF: one, or two that follow each other.
struct BlockScales {
  int first;  // byte in the block; -1: none
  int count = 1;
};

constexpr BlockScales scales_of(DType type) {
  switch (type) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4K:
    case DType::kQ5K:
      return {0, 2};
    case DType::kQ2K:
      return {80, 2};
    case DType::kQ3K:
      return {108};
    case DType::kQ6K:
      return {208};
    case DType::kIQ1M:
    case DType::kMxfp4Block:
    case DType::kNvfp4Block:
      return {-1};  // other scales, in is_bad_block
    default:
      return {0};
  }
}

bool is_bad_block(DType type, const std::byte* data) {
  constexpr uint16_t kMask = 0x7c00;
  if (type == DType::kMxfp4Block) return data[0] == std::byte{0xff};
  if (type == DType::kIQ1M) {  // the upper four bits of four words are one f16
    const auto high = [&](int word) {
      return std::to_integer<unsigned>(data[48 + 2 * word + 1]) >> 4;
    };
    return is_bad<uint16_t>(static_cast<uint16_t>(high(3) << 12 | high(2) << 8 | high(1) << 4),
                            kMask);
  }
  const BlockScales scales = scales_of(type);
  for (int i = 0; i < scales.count && scales.first >= 0; ++i) {
    uint16_t word;
    std::memcpy(&word, data + scales.first + 2 * i, sizeof word);
    if (is_bad(word, kMask)) return true;
  }
  return false;
}

}  // namespace

int64_t first_not_finite(DType type, const std::byte* data, int64_t count) {
  switch (type) {
    case DType::kF64:
      return find<uint64_t>(data, count, 0x7ff0'0000'0000'0000u);
    case DType::kF32:
      return find<uint32_t>(data, count, 0x7f80'0000u);
    case DType::kF16:
      return find<uint16_t>(data, count, 0x7c00u);
    case DType::kBF16:
      return find<uint16_t>(data, count, 0x7f80u);
    case DType::kF8E4M3:
      return find<uint8_t>(data, count, 0x7fu);
    case DType::kF8E5M2:
      return find<uint8_t>(data, count, 0x7cu);
    case DType::kF8E8M0:
      return find<uint8_t>(data, count, 0xffu);
    default:
      break;
  }
  if (!is_gguf_block(type)) return -1;
  for (int64_t i = 0; i < count; ++i) {
    if (is_bad_block(type, data + i * block(type).bytes)) return i;
  }
  return -1;
}

}  // namespace moracle
