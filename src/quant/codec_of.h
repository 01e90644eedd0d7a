// The interface of a number format's file.
#pragma once

#include "moracle/base.h"

namespace moracle {

/// `decode(row, i)` returns element i of a row of this type as a number. The row needs no
/// alignment. Each type of canonical weights has a specialization, in its own file in codecs/.
template <DType type>
struct CodecOf;

template <DType type>
concept HasCodec = requires(const std::byte* row, int64_t i) {
  CodecOf<type>::decode(row, i);
};

}  // namespace moracle
