#include "layout/sorted_columns.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

// The source column of each result column. A counting sort keeps the order within a group.
Result<std::vector<int32_t>> sorted_order(const CanonicalMatrix& piece) {
  const int64_t groups = piece.scale_cols(), cols = piece.group_cols();
  std::vector<int32_t> next(groups + 1, 0), order(piece.k);
  for (const int32_t group : piece.group_index) ++next[group + 1];
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t wanted = std::min(cols, piece.k - g * cols);
    if (next[g + 1] != wanted) {
      return Error{ErrorKind::kUnsupported, "", "group index",
                   str(wanted, " columns in group ", g, " (backend reference reads any)"),
                   str("it has ", next[g + 1])};
    }
    next[g + 1] += next[g];
  }
  for (int64_t c = 0; c < piece.k; ++c)
    order[next[piece.group_index[c]]++] = static_cast<int32_t>(c);
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

Result<CanonicalMatrix> sort_columns(const CanonicalMatrix& piece) {
  CanonicalMatrix sorted;
  sorted.n = piece.n;
  sorted.k = piece.k;
  sorted.key = piece.key;
  sorted.scales = piece.scales;
  sorted.zero_points = piece.zero_points;
  sorted.minimums = piece.minimums;
  sorted.bias = piece.bias;
  MORACLE_TRY(sorted.group_index, sorted_order(piece));
  const int64_t row_bytes = piece.row_bytes();
  sorted.storage.resize(piece.n * row_bytes);
  sorted.codes = sorted.storage;
  std::vector<uint8_t> codes;
  for (int64_t r = 0; r < piece.n; ++r) {
    const std::byte* const from = piece.codes.data() + r * row_bytes;
    std::byte* const to = sorted.storage.data() + r * row_bytes;
    if (bits(piece.key.dtype) == 4)
      gather_nibbles(from, sorted.group_index, codes, to);
    else
      gather<uint8_t>(from, sorted.group_index, to);
  }
  return sorted;
}

}  // namespace moracle
