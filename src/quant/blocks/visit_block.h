// Selects the codec of a block type: the only switch over block types. It includes every code book,
// so include gguf_blocks.h where its functions are enough.
#pragma once

#include <utility>

#include "quant/blocks/block_of.h"
#include "quant/blocks/blocks.inc"

namespace moracle {

/// Calls `f.template operator()<BlockOf<type>>()` for a block type of GGUF; returns false for
/// other types.
template <class F>
constexpr bool visit_block(DType dtype, F&& f) {
  constexpr auto first = static_cast<size_t>(DType::kQ4_0);
  return [&]<size_t... i>(std::index_sequence<i...>) {
    return ((dtype == static_cast<DType>(first + i)
                 ? (f.template operator()<BlockOf<static_cast<DType>(first + i)>>(), true)
                 : false) ||
            ...);
  }
  (std::make_index_sequence<kNumDTypes - first>());
}

}  // namespace moracle
