// Selects the codec of a dtype: the only switch over number formats.
#pragma once

#include <array>
#include <utility>

#include "moracle/quant.h"
#include "quant/codec_of.h"
#include "quant/codecs.inc"

namespace moracle {

template <DType type, class F>
constexpr bool visit_codec_of(DType dtype, F&& f) {
  if constexpr (HasCodec<type>) {
    if (dtype == type) return f.template operator()<CodecOf<type>>(), true;
  }
  return false;
}

/// Calls `f.template operator()<Codec>()` for the codec of `dtype`; returns false if there is none.
template <class F>
constexpr bool visit_codec(DType dtype, F&& f) {
  return [&]<size_t... type>(std::index_sequence<type...>) {
    return (visit_codec_of<static_cast<DType>(type)>(dtype, f) || ...);
  }
  (std::make_index_sequence<kNumDTypes>());
}

constexpr bool has_codec(DType type) {
  return visit_codec(type, []<class Codec>() {});
}

/// Every type with a codec, in enum order.
inline constexpr auto kCodecTypes = [] {
  constexpr auto list = [](DType* out) {
    size_t count = 0;
    for (size_t i = 0; i < kNumDTypes; ++i) {
      const auto type = static_cast<DType>(i);
      if (!has_codec(type)) continue;
      if (out != nullptr) out[count] = type;
      ++count;
    }
    return count;
  };
  std::array<DType, list(nullptr)> types{};
  list(types.data());
  return types;
}();

/// Row `r` of `matrix` as doubles, exactly as its scheme defines the values. `out` has k elements.
void dequantize_row(const CanonicalMatrix& matrix, int64_t r, double* out);

/// The codes of row `r` as numbers, without scale, zero point or minimum.
void unpack_row(const CanonicalMatrix& matrix, int64_t r, double* out);

}  // namespace moracle
