#include "quant/blocks/encode_blocks.h"

#include <utility>

#include "base/text.h"
#include "quant/blocks/gguf_blocks.h"
#include "quant/codecs/gguf/encode/mxfp4.h"
#include "quant/codecs/gguf/encode/q4_0.h"
#include "quant/codecs/gguf/encode/q4_k.h"
#include "quant/codecs/gguf/encode/q6_k.h"
#include "quant/codecs/gguf/encode/q8_0.h"

namespace moracle {
namespace {

constexpr DType kEncoded[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4K, DType::kQ6K,
                              DType::kMxfp4Block};

template <DType type>
void encode_each(const float* values, int64_t count, std::byte* blocks) {
  constexpr Block kBlock = BlockOf<type>::kBlock;
  for (int64_t b = 0; b < count; ++b)
    BlockEncoder<type>::encode(values + b * kBlock.elements, blocks + b * kBlock.bytes);
}

}  // namespace

std::span<const DType> encoded_blocks() {
  return kEncoded;
}

Status encode_blocks(DType type, const float* values, int64_t count, std::byte* blocks) {
  [&]<size_t... i>(std::index_sequence<i...>) {
    ((type == kEncoded[i] ? encode_each<kEncoded[i]>(values, count, blocks) : void()), ...);
  }
  (std::make_index_sequence<std::size(kEncoded)>());
  const int64_t bad = first_not_finite_block(type, blocks, count);
  if (bad < 0) return {};
  return Error{ErrorKind::kUnsupported, "", str("block ", bad),
               str("weights whose scale f16 holds, for ", name(type)), "they are larger"};
}

}  // namespace moracle
