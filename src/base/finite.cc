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
      return -1;
  }
}

}  // namespace moracle
