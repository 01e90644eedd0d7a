#if defined(__x86_64__)

#include "kernels/cpu/packed_rows.h"

#include <algorithm>
#include <cstring>

#include "oracle/carve.h"

namespace moracle::cpu {
namespace {

int64_t element_bytes(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kInt8 ? 1 : arithmetic == Arithmetic::kBf16 ? 2 : 4;
}

// One line more than the columns take: rows at a distance of a power of two would share the same
// few sets of the first cache.
int64_t stride_of(Arithmetic arithmetic, bool two_parts, int64_t k) {
  return (two_parts ? 2 : 1) * read_cols(arithmetic, k) * element_bytes(arithmetic) + kLineBytes;
}

PackedRows carve(Arithmetic arithmetic, bool two_parts, int64_t k, int64_t unit, int64_t rows,
                 int64_t num_scales, std::byte* memory, size_t* bytes) {
  Carver carver(memory);
  PackedRows packed;
  packed.stride = stride_of(arithmetic, two_parts, k);
  if (two_parts) packed.rest = read_cols(arithmetic, k) * element_bytes(arithmetic);
  packed.values = carver.take<std::byte>((rows + kMaxBlockRows) * packed.stride);
  packed.num_sums = arithmetic == Arithmetic::kInt8 ? (k + unit - 1) / unit : 0;
  packed.sums = carver.take<int32_t>(rows * packed.num_sums);
  packed.scales = carver.take<float>(rows * num_scales);
  packed.num_scales = num_scales;
  if (bytes != nullptr) *bytes = carver.bytes();
  return packed;
}

}  // namespace

int64_t read_cols(Arithmetic arithmetic, int64_t k) {
  const int64_t tile = 16 * 4 / element_bytes(arithmetic);
  return (k + tile - 1) / tile * tile;
}

bool in_two_parts(Arithmetic arithmetic, const Scheme& scheme) {
  return arithmetic == Arithmetic::kBf16 && !scheme.activation;
}

size_t packed_bytes(Arithmetic arithmetic, bool two_parts, int64_t k, int64_t unit, int64_t rows,
                    int64_t num_scales) {
  size_t bytes = 0;
  carve(arithmetic, two_parts, k, unit, rows, num_scales, nullptr, &bytes);
  return bytes;
}

PackedRows pack_rows(Arithmetic arithmetic, bool two_parts, const GroupedRows& from, int64_t k,
                     int64_t unit, int64_t num_rows, std::byte* memory, ThreadPool& pool) {
  const Rows& x = from.x;
  const int64_t num_scales =
      x.scales == nullptr || x.values.dtype == DType::kF32 ? 0 : x.num_scales;
  const PackedRows packed =
      carve(arithmetic, two_parts, k, unit, num_rows, num_scales, memory, nullptr);
  const int64_t used = k * element_bytes(arithmetic);
  const int64_t source_bytes = x.values.stride * bits(x.values.dtype) / 8;
  auto pack = [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const int64_t source = from.row_index ? from.row_index[r] : r;
      const auto* row = static_cast<const std::byte*>(x.values.data) + source * source_bytes;
      std::byte* const to = packed.values + r * packed.stride;
      switch (x.values.dtype) {
        case DType::kI8:
          if (arithmetic == Arithmetic::kInt8)
            kAvx512Rows.copy_int8(reinterpret_cast<const int8_t*>(row), k, unit, to,
                                  packed.sums + r * packed.num_sums);
          else
            kAvx512Rows.int8_to_bf16(reinterpret_cast<const int8_t*>(row), k, to);
          break;
        case DType::kF8E4M3:
          kAvx512Rows.e4m3_to_bf16(reinterpret_cast<const uint8_t*>(row), k, to);
          break;
        default:
          if (arithmetic == Arithmetic::kBf16)
            kAvx512Rows.f32_to_bf16(reinterpret_cast<const float*>(row), k, to,
                                    two_parts ? to + packed.rest : nullptr);
          else
            std::memcpy(to, row, used);
          break;
      }
      std::memset(to + used, 0, (two_parts ? packed.rest : packed.stride) - used);
      if (two_parts) std::memset(to + packed.rest + used, 0, packed.stride - packed.rest - used);
      for (int64_t s = 0; s < num_scales; ++s)
        packed.scales[r * num_scales + s] = x.scales[source * num_scales + s];
    }
  };
  // Below this the threads would take longer to wake up than the work takes.
  constexpr int64_t kAlone = 256 << 10;
  if (num_rows * packed.stride < kAlone)
    pack(0, num_rows);
  else
    pool.split(num_rows, pack);
  return packed;
}

}  // namespace moracle::cpu

#endif
