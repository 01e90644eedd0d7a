// What a number format's file defines.
#pragma once

#include "moracle/base.h"

namespace moracle {

/// `decode(row, i)`: element i of a row of this type as a number, whatever the row's address. A
/// type that canonical weights may hold has a specialization, in a file of its own in codecs/.
template <DType type>
struct CodecOf;

template <DType type>
concept HasCodec = requires(const std::byte* row, int64_t i) {
  CodecOf<type>::decode(row, i);
};

}  // namespace moracle
