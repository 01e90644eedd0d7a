#include "layout/sorted_columns.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

// The source column of each result column. A counting sort keeps the order within a group.
Result<std::vector<int32_t>> sorted_order(const CanonicalMatrix& slice) {
  const int64_t groups = slice.scale_cols(), cols = slice.group_cols();
  std::vector<int32_t> next(groups + 1, 0), order(slice.k);
  for (const int32_t group : slice.group_index) ++next[group + 1];
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t wanted = std::min(cols, slice.k - g * cols);
    if (next[g + 1] != wanted) {
      return Error{ErrorKind::kUnsupported, "", "group index",
                   str(wanted, " columns in group ", g, " (backend reference reads any)"),
                   str("it has ", next[g + 1])};
    }
    next[g + 1] += next[g];
  }
  for (int64_t c = 0; c < slice.k; ++c)
    order[next[slice.group_index[c]]++] = static_cast<int32_t>(c);
  return order;
}

template <class Code>
void gather(const std::byte* from, const std::vector<int32_t>& order, std::byte* to) {
  const auto* codes = reinterpret_cast<const Code*>(from);
  auto* out = reinterpret_cast<Code*>(to);
  for (size_t j = 0; j < order.size(); ++j) out[j] = codes[order[j]];
}

// Expands to one byte per code first, because a nibble's position differs between columns.
void gather_nibbles(const std::byte* from, const std::vector<int32_t>& order,
                    std::vector<uint8_t>& codes, std::byte* to) {
  const size_t k = order.size();
  codes.resize(k + 1);
  for (size_t c = 0; c < k; c += 2) {
    const auto two = static_cast<uint8_t>(from[c / 2]);
    codes[c] = two & 15;
    codes[c + 1] = two >> 4;
  }
  for (size_t j = 0; j < k; j += 2) {
    const unsigned high = j + 1 < k ? codes[order[j + 1]] : 0;
    to[j / 2] = static_cast<std::byte>(codes[order[j]] | high << 4);
  }
}

}  // namespace

Result<CanonicalMatrix> sort_columns(const CanonicalMatrix& slice) {
  CanonicalMatrix sorted;
  sorted.n = slice.n;
  sorted.k = slice.k;
  sorted.key = slice.key;
  sorted.scales = slice.scales;
  sorted.zero_points = slice.zero_points;
  sorted.minimums = slice.minimums;
  sorted.scale_factors = slice.scale_factors;
  sorted.minimum_factors = slice.minimum_factors;
  sorted.bias = slice.bias;
  MORACLE_TRY(sorted.group_index, sorted_order(slice));
  const int64_t row_bytes = slice.row_bytes();
  sorted.storage.resize(slice.n * row_bytes);
  sorted.codes = sorted.storage;
  std::vector<uint8_t> codes;
  for (int64_t r = 0; r < slice.n; ++r) {
    const std::byte* const from = slice.codes.data() + r * row_bytes;
    std::byte* const to = sorted.storage.data() + r * row_bytes;
    if (bits(slice.key.dtype) == 4)
      gather_nibbles(from, sorted.group_index, codes, to);
    else
      gather<uint8_t>(from, sorted.group_index, to);
  }
  return sorted;
}

}  // namespace moracle
