// Compressed attention on host memory: a token's last positions, then its entries. kKvBlock of them
// are multiplied as a KV block whose rows lie anywhere. Blocks and their order depend on the token
// alone, so threads and the rest of the batch change no bit.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/ops/attention/attend_items.h"
#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {
namespace ops_attend_compressed {
namespace {

using cpu::AttendArgs;
using cpu::AttendRow;
using cpu::kAttendRows;
using cpu::kKvBlock;

// What one token sees, in order: positions of its window, then entries.
struct Seen {
  const Batch& batch;
  const CompressedShape& shape;
  std::byte* const* pages;  // of the sequence
  const int32_t* selected;  // entries; null: the first ones
  int64_t first, positions, entries;

  int64_t count() const { return positions + entries; }
  const std::byte* row(int64_t i) const {
    const int64_t bytes = cached_bytes(shape.cache.dtype, shape.head_dim);
    if (i < positions) {
      const int64_t p = first + i;
      return pages[p / batch.page] + shape.cache.keys + p % batch.page * bytes;
    }
    const int64_t entry = selected == nullptr ? i - positions : selected[i - positions];
    const EntryPlace place = entry_place(entry, shape.rate, batch.page);
    return pages[place.page] + shape.cache.entries + place.row * bytes;
  }
};

Seen seen_by(const Batch& batch, const CompressedShape& shape, int64_t token) {
  const int64_t position = batch.positions[token];
  const int64_t first = std::max<int64_t>(0, position - shape.window + 1);
  std::byte* const* const pages = batch.pages + batch.first_page[batch.sequences[token]];
  Seen seen{batch, shape, pages, nullptr, first, position + 1 - first, 0};
  if (shape.rate > 0) seen.entries = (position + 1) / shape.rate;
  if (shape.selected != nullptr && seen.entries > shape.top_k) {
    seen.entries = shape.top_k;
    seen.selected = shape.selected + token * shape.top_k;
  }
  return seen;
}

}  // namespace
}  // namespace ops_attend_compressed

Status CpuOps::attend_compressed(const Matrix& q, const Batch& batch, const CompressedShape& shape,
                                 const Matrix& out, Stream) {
  using namespace ops_attend_compressed;
  const std::lock_guard lock(attending_.mutex);
  const int64_t dim = shape.head_dim;
  const int64_t together = std::min<int64_t>(shape.num_heads, kAttendRows);
  const int64_t turns = (shape.num_heads + together - 1) / together;
  const auto attend_item = [&](int thread, int64_t token, int64_t first_head) {
    float* const scratch = attend_scratch(thread, cpu::kAttendScratch + kAttendRows * dim);
    float* const partial_outs = scratch + cpu::kAttendScratch;
    const void* key_rows[kKvBlock];
    AttendArgs args{};
    args.key_rows = key_rows, args.value_rows = key_rows;
    args.head_dim = args.value_dim = dim;
    args.scale = shape.scale;
    args.scratch = scratch;
    args.cache = cpu::cache_type(shape.cache.dtype);
    const int count = static_cast<int>(std::min(together, shape.num_heads - first_head));
    AttendRow rows[kAttendRows], partials[kAttendRows];
    for (int r = 0; r < count; ++r) {
      const int64_t head = first_head + r;
      // A sink is a score without a value.
      rows[r] = {f32_row(q, token) + head * dim,
                 0,
                 0,
                 f32_row(out, token) + head * dim,
                 shape.sinks[head],
                 1};
      std::fill_n(rows[r].out, dim, 0.0f);
    }
    const Seen seen = seen_by(batch, shape, token);
    for (int64_t begin = 0; begin < seen.count(); begin += kKvBlock) {
      const int64_t length = std::min(kKvBlock, seen.count() - begin);
      for (int64_t i = 0; i < length; ++i) key_rows[i] = seen.row(begin + i);
      for (int r = 0; r < count; ++r)
        partials[r] = {rows[r].query, 0, length, partial_outs + r * dim, 0, 0};
      args.rows = partials, args.num_rows = count;
      args.from = 0, args.to = length;
      vector_.attend(args);
      for (int r = 0; r < count; ++r) vector_.attend_merge(partials[r], dim, rows[r]);
    }
    for (int r = 0; r < count; ++r)
      vector_.scale(rows[r].out, 1.0f / rows[r].sum, dim, rows[r].out);
  };
  std::atomic<int64_t> next{0};
  const auto items = cpu::dynamic_schedule(
      next, turns * batch.num_tokens,
      [&](int thread, int64_t i) { attend_item(thread, i / turns, i % turns * together); });
  const int64_t seen = seen_by(batch, shape, batch.num_tokens - 1).count();
  const int64_t work = batch.num_tokens * shape.num_heads * seen * 2 * dim;
  work < cpu::kWorthThreads ? items(0) : pool_.run(items);
  return {};
}

Status CpuOps::select_entries(const Matrix& q, const Matrix& weights, const Batch& batch,
                              const EntryIndexShape& shape, int32_t* selected, std::byte*, Stream) {
  const std::lock_guard lock(attending_.mutex);
  const auto entries_of = [&](int64_t token) {
    return (static_cast<int64_t>(batch.positions[token]) + 1) / shape.rate;
  };
  const auto select_item = [&](int thread, int64_t t) {
    const int64_t count = entries_of(t);
    if (count <= shape.top_k) return;
    float* const scores = attend_scratch(thread, count + 4);  // written in fours
    std::byte* const* const pages = batch.pages + batch.first_page[batch.sequences[t]];
    for (int64_t e = 0; e < count;) {
      const EntryPlace place = entry_place(e, shape.rate, batch.page);
      int64_t end = e + 1;  // entries of one page are adjacent
      while (end < count && entry_place(end, shape.rate, batch.page).page == place.page) ++end;
      const int64_t bytes = cached_bytes(shape.cache.index_dtype, shape.head_dim);
      vector_.index_scores({f32_row(q, t), f32_row(weights, t), shape.num_heads, shape.head_dim,
                            pages[place.page] + shape.cache.entry_keys + place.row * bytes,
                            cpu::cache_type(shape.cache.index_dtype), end - e, shape.scale,
                            scores + e});
      e = end;
    }
    const int32_t last = batch.first_token[batch.sequences[t] + 1] - 1;
    const int64_t row = shape.batch_invariant ? 0 : entries_of(last);
    attending_.largest[thread].find(scores, count, shape.top_k, row, selected + t * shape.top_k);
  };
  std::atomic<int64_t> next{0};
  const auto items = cpu::dynamic_schedule(next, batch.num_tokens,
                                           [&](int thread, int64_t t) { select_item(thread, t); });
  const int64_t work =
      batch.num_tokens * (batch.longest / shape.rate) * shape.num_heads * shape.head_dim;
  work < cpu::kWorthThreads ? items(0) : pool_.run(items);
  return {};
}

}  // namespace moracle
