// Sparse attention on host memory: tokens that see only selected positions. kKvBlock selected
// positions of a head are multiplied as a KV block whose rows lie anywhere. KV blocks and their
// order depend on the selection alone, so threads and the rest of the batch change no bit.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/ops/attention/attend_items.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/simd/cached_codes.h"

namespace moracle {
namespace {

using cpu::AttendArgs;
using cpu::AttendRow;
using cpu::kAttendRows;
using cpu::kKvBlock;

// The cached keys, or values, of one head of a sequence.
struct CachedRows {
  const Batch& batch;
  std::byte* const* pages;  // of the sequence
  DType dtype;
  int64_t head, dim, offset, scales;
  bool keys;

  // Finds the rows of some positions. int8 becomes f32, in `decoded`.
  void find(const int32_t* positions, int64_t count, const void** rows, float* decoded) const {
    const int64_t bytes = cached_bytes(dtype, dim), first = head * batch.page;
    for (int64_t i = 0; i < count; ++i) {
      const std::byte* const page = pages[positions[i] / batch.page];
      const int64_t at = positions[i] % batch.page;
      if (dtype == DType::kI8) {
        const float scale = reinterpret_cast<const float*>(page + scales)[first + at];
        rows[i] = decode(reinterpret_cast<const int8_t*>(page + offset + first * bytes), at, scale,
                         decoded + i * dim);
      } else {
        rows[i] = page + offset + (first + at) * bytes;
      }
    }
  }
  const float* decode(const int8_t* codes, int64_t at, float scale, float* to) const {
    const int64_t columns = cached_columns(dtype, dim);
    for (int64_t c = 0; c < dim; ++c) {
      const int64_t code = keys ? cpu::key_code(at, c, columns) : cpu::value_code(at, c, columns);
      to[c] = static_cast<float>(codes[code]) * scale;
    }
    return to;
  }
};

// Writes up to kKvBlock positions that a token sees, those from the `begin`-th of its selection on.
int64_t selected_positions(const AttentionShape& shape, int64_t position, int64_t token,
                           int64_t kv_head, int64_t begin, int32_t* to) {
  const int32_t* const entries = shape.selected + shape.selection_at(token, kv_head);
  const int64_t block = shape.block;
  if (block == 1) {
    const int64_t count = std::min(kKvBlock, shape.top_k - begin);
    std::copy_n(entries + begin, count, to);
    return count;
  }
  const int64_t seen = shape.seen_of_selection(position, entries[shape.top_k / block - 1]);
  // Behind the selected pools: as many positions as the rest, which end with the token.
  const int64_t behind = position + 1 - seen;
  const int64_t count = std::clamp<int64_t>(seen - begin, 0, kKvBlock);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = begin + i;
    to[i] = static_cast<int32_t>(at >= shape.top_k ? behind + at
                                                   : entries[at / block] * block + at % block);
  }
  return count;
}

}  // namespace

void CpuOps::attend_selected(const Matrix& q, const Batch& batch, const AttentionShape& shape,
                             const Matrix& out) {
  const LayerCache& cache = shape.cache;
  const int64_t heads = shape.num_heads / shape.num_kv_heads, dim = shape.value_dim;
  const bool codes = cache.dtype == DType::kI8;
  const int64_t floats =
      cpu::kAttendScratch + kAttendRows * dim + (codes ? kKvBlock * (shape.head_dim + dim) : 0);
  // Neighbouring tokens select rows of the same range, block after block: up to kAttendRows rows
  // share the caches. More heads of one token take turns.
  const int64_t together = std::min<int64_t>(heads, kAttendRows);
  const int64_t even = batch.num_tokens * shape.num_kv_heads / (4 * pool_.size());
  const int64_t group = std::clamp<int64_t>(even, 1, kAttendRows / together);
  const auto attend_item = [&](int thread, int64_t kv, int64_t first_token, int64_t first_head) {
    float* const scratch = attend_scratch(thread, floats);
    float* const partial_outs = scratch + cpu::kAttendScratch;
    float* const decoded = partial_outs + kAttendRows * dim;
    const void *key_rows[kKvBlock], *value_rows[kKvBlock];
    int32_t own_positions[kKvBlock];
    AttendArgs args{};
    args.key_rows = key_rows, args.value_rows = value_rows;
    args.head_dim = shape.head_dim, args.value_dim = dim;
    args.from = 0, args.to = kKvBlock;
    args.scale = shape.scale * cache.key_scale;
    args.scratch = scratch;
    args.cache = cpu::cache_type(cache.dtype);
    const int count = static_cast<int>(std::min(together, heads - first_head));
    const int64_t end = std::min(batch.num_tokens, first_token + group);
    AttendRow rows[kAttendRows], partials[kAttendRows];
    for (int64_t t = first_token; t < end; ++t) {
      for (int r = 0; r < count; ++r) {
        const int64_t head = kv * heads + first_head + r;
        AttendRow& row = rows[(t - first_token) * count + r];
        row = {f32_row(q, t) + head * shape.head_dim, 0,         0,
               f32_row(out, t) + head * dim,          -INFINITY, 0};
        // A sink is a score without a value.
        if (shape.sinks != nullptr) row.largest = shape.sinks[head], row.sum = 1;
      }
    }
    const auto each_token = [&](const auto& work) {
      for (int64_t t = first_token; t < end; ++t)
        if (batch.positions[t] >= shape.first_selecting())
          work(t, rows + (t - first_token) * count);
    };
    each_token([&](int64_t, AttendRow* own) {
      for (int r = 0; r < count; ++r) std::fill_n(own[r].out, dim, 0.0f);
    });
    for (int64_t begin = 0; begin < shape.first_selecting(); begin += kKvBlock) {
      each_token([&](int64_t t, AttendRow* own) {
        const int64_t positions =
            selected_positions(shape, batch.positions[t], t, kv, begin, own_positions);
        if (positions == 0) return;
        std::byte* const* const pages = batch.pages + batch.first_page[batch.sequences[t]];
        const CachedRows keys{batch,          pages,      cache.dtype,      kv,
                              shape.head_dim, cache.keys, cache.key_scales, true},
            values{batch, pages, cache.dtype, kv, dim, cache.values, cache.value_scales, false};
        keys.find(own_positions, positions, key_rows, decoded);
        values.find(own_positions, positions, value_rows, decoded + kKvBlock * shape.head_dim);
        for (int r = 0; r < count; ++r)
          partials[r] = {own[r].query, 0, positions, partial_outs + r * dim, 0, 0};
        args.rows = partials, args.num_rows = count;
        vector_.attend(args);
        for (int r = 0; r < count; ++r) vector_.attend_merge(partials[r], dim, own[r]);
      });
    }
    each_token([&](int64_t, AttendRow* own) {
      for (int r = 0; r < count; ++r)
        vector_.scale(own[r].out, cache.value_scale / own[r].sum, dim, own[r].out);
    });
  };
  int64_t tokens = 0;
  for (int64_t t = 0; t < batch.num_tokens; ++t)
    tokens += batch.positions[t] >= shape.first_selecting();
  if (tokens == 0) return;
  const int64_t groups = (batch.num_tokens + group - 1) / group,
                turns = (heads + together - 1) / together;
  std::atomic<int64_t> next{0};
  const auto items =
      cpu::dynamic_schedule(next, shape.num_kv_heads * turns * groups, [&](int thread, int64_t i) {
        const int64_t of_heads = i / groups;
        attend_item(thread, of_heads / turns, i % groups * group, of_heads % turns * together);
      });
  const int64_t work = tokens * shape.num_heads * shape.first_selecting() * (shape.head_dim + dim);
  work < cpu::kWorthThreads ? items(0) : pool_.run(items);
}

}  // namespace moracle
