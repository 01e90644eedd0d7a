// Attention on host memory. The context is split into stretches that begin at multiples of
// kKvBlock. A stretch's contribution to a query depends on the query and the stretch alone.
// Contributions are merged in the order of positions (Milakov and Gimelshein, "Online normalizer
// calculation for softmax", 2018; Dao et al., "Flash-Decoding", 2023). The thread that computes a
// stretch and the rest of the batch change no bit.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "base/try.h"
#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {
namespace {

using cpu::AttendArgs;
using cpu::AttendRow;
using cpu::kAttendRows;
using cpu::kKvBlock;
using cpu::kPackedRows;

// A sequence with as many tokens in a step is multiplied in bf16, if the request allows it.
constexpr int64_t kPackedTokens = 16;

// Rows are the queries of one sequence that read the same keys: heads_per_kv heads of every token,
// token by token. A block is up to block_rows of these rows, for one head of keys.
struct Blocks {
  const Matrix& q;
  const Matrix& out;
  const Batch& batch;
  const AttentionShape& shape;
  const cpu::VectorOps& vector;
  int64_t threads;

  int64_t heads_per_kv() const { return shape.num_heads / shape.num_kv_heads; }
  int64_t tokens(int64_t s) const { return batch.first_token[s + 1] - batch.first_token[s]; }
  int64_t rows(int64_t s) const { return tokens(s) * heads_per_kv(); }
  // Packing keys and values for bf16 products costs as much as multiplying a few rows.
  bool may_pack() const {
    return shape.bf16_products && !shape.batch_invariant && vector.attend_bf16 != nullptr &&
           shape.cache.dtype != DType::kI8 && cpu::packs(shape.head_dim, shape.value_dim);
  }
  bool packs(int64_t s) const { return may_pack() && tokens(s) >= kPackedTokens; }
  // Many rows share what a block packs, as long as there are blocks for all threads.
  int64_t packed_rows() const {
    const bool many = batch.num_tokens * shape.num_heads >= 4 * threads * kPackedRows;
    return many ? kPackedRows : kAttendRows;
  }
  int64_t block_rows(int64_t s) const { return packs(s) ? packed_rows() : kAttendRows; }
  int64_t blocks(int64_t s) const {
    return (rows(s) + block_rows(s) - 1) / block_rows(s) * shape.num_kv_heads;
  }
  int64_t total() const {
    int64_t sum = 0;
    for (int64_t s = 0; s < batch.num_sequences; ++s) sum += blocks(s);
    return sum;
  }
  int64_t most_rows() const {  // per block
    return std::min<int64_t>(batch.most_tokens * heads_per_kv(), largest_block());
  }
  int64_t largest_block() const { return may_pack() ? packed_rows() : kAttendRows; }
  int64_t stretches() const { return (longest() + kKvBlock - 1) / kKvBlock; }
  int64_t longest() const {
    int64_t end = 0;
    for (int64_t s = 0; s < batch.num_sequences; ++s)
      if (tokens(s) > 0)
        end = std::max<int64_t>(end, batch.positions[batch.first_token[s + 1] - 1] + 1);
    return end;
  }
};

struct Block {
  AttendRow rows[kPackedRows];
  AttendArgs args;                      // without keys and values, which depend on a stretch's page
  int64_t first_stretch, last_stretch;  // [first, last)
  std::byte* const* pages;              // of the sequence
  int64_t keys, values;                 // byte offsets in a page
  int64_t key_scales, value_scales;     // likewise
  float value_scale;                    // multiplies every value
  bool packed;                          // multiplied by attend_bf16
};

cpu::CacheType cache_type(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return cpu::CacheType::kBF16;
    case DType::kF16:
      return cpu::CacheType::kF16;
    case DType::kF8E4M3:
      return cpu::CacheType::kE4M3;
    default:
      return cpu::CacheType::kF32;
  }
}

// Block i of all blocks. Its rows write to the output and start empty.
void find(const Blocks& all, int64_t i, Block& block) {
  const AttentionShape& shape = all.shape;
  int64_t s = 0;
  for (; i >= all.blocks(s); ++s) i -= all.blocks(s);
  const int64_t kv = i % shape.num_kv_heads, first = i / shape.num_kv_heads * all.block_rows(s);
  const int64_t heads = all.heads_per_kv(), first_token = all.batch.first_token[s];
  const int num_rows = static_cast<int>(std::min(all.block_rows(s), all.rows(s) - first));
  int64_t least = INT64_MAX, most = 0;
  for (int r = 0; r < num_rows; ++r) {
    const int64_t token = first_token + (first + r) / heads,
                  head = kv * heads + (first + r) % heads;
    const int64_t end = all.batch.positions[token] + 1;
    const int64_t begin = shape.first_seen(end - 1);
    AttendRow& row = block.rows[r];
    row = {f32_row(all.q, token) + head * shape.head_dim,    begin,     end,
           f32_row(all.out, token) + head * shape.value_dim, -INFINITY, 0};
    // A sink is a score without a value.
    if (shape.sinks != nullptr) row.largest = shape.sinks[head], row.sum = 1;
    least = std::min(least, begin), most = std::max(most, end);
  }
  block.first_stretch = least / kKvBlock;
  block.last_stretch = (most + kKvBlock - 1) / kKvBlock;
  block.args.rows = block.rows;
  block.args.num_rows = num_rows;
  const LayerCache& cache = shape.cache;
  const int64_t positions = kv * all.batch.page;
  block.pages = all.batch.pages + all.batch.first_page[s];
  block.keys = cache.keys + positions * cached_bytes(cache.dtype, shape.head_dim);
  block.values = cache.values + positions * cached_bytes(cache.dtype, shape.value_dim);
  block.key_scales = cache.key_scales + positions * static_cast<int64_t>(sizeof(float));
  block.value_scales = cache.value_scales + positions * static_cast<int64_t>(sizeof(float));
  block.args.cache = cache_type(cache.dtype);
  block.args.key_stride = cached_columns(cache.dtype, shape.head_dim);
  block.args.value_stride = cached_columns(cache.dtype, shape.value_dim);
  block.args.head_dim = shape.head_dim;
  block.args.value_dim = shape.value_dim;
  block.args.scale = shape.scale * cache.key_scale;
  block.value_scale = cache.value_scale;
  block.packed = all.packs(s);
}

// The first key of a stretch; null for a stretch that the block does not have.
const std::byte* keys_of(const Block& block, DType cache, int64_t stretch, int64_t page) {
  if (stretch < block.first_stretch || stretch >= block.last_stretch) return nullptr;
  const int64_t position = stretch * kKvBlock;
  return block.pages[position / page] + block.keys +
         position % page * cached_bytes(cache, block.args.head_dim);
}

// Computes each row's result of one stretch into `parts`, whose `out` pointers are set. `next`: the
// keys that the thread reads afterwards. `new_queries`: `scratch` served no other stretch of the
// block right before.
void search(const cpu::VectorOps& vector, DType cache, const Block& block, int64_t stretch,
            int64_t page, const std::byte* next, AttendRow* parts, float* scratch,
            bool new_queries = true) {
  AttendArgs args = block.args;
  // A stretch lies in one page, and positions are relative to that page.
  const int64_t at = stretch * kKvBlock / page, first = at * page;
  for (int r = 0; r < args.num_rows; ++r) {
    float* const out = parts[r].out;
    parts[r] = block.rows[r];
    parts[r].begin -= first, parts[r].end -= first;
    parts[r].out = out;
  }
  args.rows = parts;
  args.keys = block.pages[at] + block.keys;
  args.values = block.pages[at] + block.values;
  args.from = stretch * kKvBlock - first;
  args.to = args.from + kKvBlock;
  args.scratch = scratch;
  args.next_keys = next;
  args.next_bytes = kKvBlock * cached_bytes(cache, args.head_dim);
  if (block.packed) {
    auto* packed = reinterpret_cast<uint32_t*>(scratch + cpu::kAttendScratch);
    packed += -(reinterpret_cast<uintptr_t>(packed) / sizeof *packed) % 16;
    args.packed_keys = packed;
    args.packed_values = packed + kKvBlock / 2 * args.head_dim;
    args.new_queries = new_queries;
    if (vector.pack_bf16(args)) return vector.attend_bf16(args);
  }
  if (cache != DType::kI8) {
    // After a packed block that holds a value which is not finite, rows go through in parts.
    const int rows = args.num_rows;
    for (int r = 0; r < rows; r += kAttendRows) {
      args.rows = parts + r, args.num_rows = std::min(kAttendRows, rows - r);
      vector.attend(args);
    }
    return;
  }
  args.key_scales = reinterpret_cast<const float*>(block.pages[at] + block.key_scales);
  args.value_scales = reinterpret_cast<const float*>(block.pages[at] + block.value_scales);
  vector.attend_int8(args);
}

void merge(const cpu::VectorOps& vector, Block& block, int64_t stretch, const AttendRow* parts) {
  const int64_t from = stretch * kKvBlock, to = from + kKvBlock;
  for (int r = 0; r < block.args.num_rows; ++r) {
    AttendRow& row = block.rows[r];
    if (std::max(row.begin, from) >= std::min(row.end, to)) continue;
    vector.attend_merge(parts[r], block.args.value_dim, row);
  }
}

void start(Block& block) {
  for (int r = 0; r < block.args.num_rows; ++r)
    std::fill_n(block.rows[r].out, block.args.value_dim, 0.0f);
}
void finish(const cpu::VectorOps& vector, Block& block) {
  for (int r = 0; r < block.args.num_rows; ++r) {
    float* const out = block.rows[r].out;
    vector.scale(out, block.value_scale / block.rows[r].sum, block.args.value_dim, out);
  }
}

// Floats of scratch for the rows of one block.
int64_t block_scratch(const Blocks& all) {
  const AttentionShape& shape = all.shape;
  const int64_t codes = shape.cache.dtype == DType::kI8 ? cpu::int8_scratch(shape.head_dim) : 0;
  const int64_t packed = all.may_pack() ? cpu::bf16_scratch(shape.head_dim, shape.value_dim) : 0;
  return cpu::kAttendScratch + codes + packed;
}

// Takes items until none is left: the cost of an item varies with its visible context.
template <class Work>
auto in_turn(std::atomic<int64_t>& next, int64_t count, Work work) {
  return [&next, count, work](int thread) {
    for (int64_t i = next++; i < count; i = next++) work(thread, i);
  };
}

}  // namespace

float* CpuOps::attend_scratch(int thread, int64_t floats) {
  std::vector<float>& own = attending_.own[thread];
  if (static_cast<int64_t>(own.size()) < floats) own.resize(floats);
  return own.data();
}

Status CpuOps::attend(const Matrix& q, const Batch& batch, const AttentionShape& shape,
                      const Matrix& out, std::byte*, Stream) {
  if (batch.page % kKvBlock != 0) {
    return Error{ErrorKind::kInvalidArgument, "", "kv cache",
                 str("pages of a multiple of ", kKvBlock, " positions on cpu"),
                 str("they have ", batch.page)};
  }
  const std::lock_guard lock(attending_.mutex);
  const Blocks all{q, out, batch, shape, vector_, pool_.size()};
  const int64_t blocks = all.total(), stretches = all.stretches();
  if (blocks == 0) return {};
  const int64_t dim = shape.value_dim, scratch = block_scratch(all);
  std::atomic<int64_t> next{0};
  const auto whole = in_turn(next, blocks, [&](int thread, int64_t i) {
    float* const own = attend_scratch(thread, scratch + all.largest_block() * dim);
    AttendRow parts[kPackedRows];
    for (int r = 0; r < all.largest_block(); ++r) parts[r].out = own + scratch + r * dim;
    Block block;
    // The last tokens see most positions, so they go first.
    find(all, blocks - 1 - i, block);
    start(block);
    for (int64_t s = block.first_stretch; s < block.last_stretch; ++s) {
      search(vector_, shape.cache.dtype, block, s, batch.page,
             keys_of(block, shape.cache.dtype, s + 1, batch.page), parts, own,
             s == block.first_stretch);
      merge(vector_, block, s, parts);
    }
    finish(vector_, block);
  });
  // Work of some ten microseconds is too little to wake other threads.
  constexpr int64_t kWorth = 200'000;
  const int64_t threads = pool_.size();
  if (threads == 1 || blocks * all.most_rows() * all.longest() * (shape.head_dim + dim) < kWorth)
    whole(0);
  else if (blocks >= 4 * threads || stretches == 1)
    pool_.run(whole);
  else
    attend_by_stretches(q, batch, shape, out);
  return {};
}

// Few blocks with a long context: threads share the context, a round of stretches at a time.
void CpuOps::attend_by_stretches(const Matrix& q, const Batch& batch, const AttentionShape& shape,
                                 const Matrix& out) {
  const Blocks all{q, out, batch, shape, vector_, pool_.size()};
  const int64_t blocks = all.total(), stretches = all.stretches(), rows = all.most_rows();
  const int64_t round = std::min(stretches, 16 * pool_.size() / blocks + 1);
  // For each block: its rows, then their results for each stretch of the round.
  std::vector<AttendRow>& table = attending_.rows;
  std::vector<float>& parts = attending_.parts;
  table.resize(std::max<size_t>(table.size(), blocks * (1 + round) * rows));
  parts.resize(std::max<size_t>(parts.size(), blocks * round * rows * shape.value_dim));
  auto rows_of = [&](int64_t b, int64_t part) { return &table[(b * (1 + round) + part) * rows]; };
  int64_t begin = stretches;
  for (int64_t b = 0; b < blocks; ++b) {
    Block block;
    find(all, b, block);
    start(block);
    std::copy_n(block.rows, block.args.num_rows, rows_of(b, 0));
    begin = std::min(begin, block.first_stretch);
    for (int64_t i = 0; i < round; ++i) {
      for (int64_t r = 0; r < rows; ++r)
        rows_of(b, 1 + i)[r].out = &parts[((b * round + i) * rows + r) * shape.value_dim];
    }
  }
  for (; begin < stretches; begin += round) {
    const int64_t end = std::min(begin + round, stretches);
    std::atomic<int64_t> next{0};
    // Heads that are adjacent in memory are processed one after another.
    pool_.run(in_turn(next, blocks * (end - begin), [&](int thread, int64_t i) {
      Block block;
      find(all, i % blocks, block);
      const int64_t s = begin + i / blocks;
      if (s < block.first_stretch || s >= block.last_stretch) return;
      // The other threads take the items between.
      const int64_t after = i + pool_.size();
      Block other;
      find(all, after % blocks, other);
      const std::byte* const ahead =
          keys_of(other, shape.cache.dtype, begin + after / blocks, batch.page);
      search(vector_, shape.cache.dtype, block, s, batch.page, ahead,
             rows_of(i % blocks, 1 + s - begin), attend_scratch(thread, block_scratch(all)));
    }));
    const int64_t work = (end - begin) * rows * shape.value_dim;
    split_rows(blocks, work, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) {
        Block block;
        find(all, b, block);
        std::copy_n(rows_of(b, 0), block.args.num_rows, block.rows);
        const int64_t from = std::max(begin, block.first_stretch);
        for (int64_t s = from; s < std::min(end, block.last_stretch); ++s)
          merge(vector_, block, s, rows_of(b, 1 + s - begin));
        if (end == stretches) finish(vector_, block);
        std::copy_n(block.rows, block.args.num_rows, rows_of(b, 0));
      }
    });
  }
}

}  // namespace moracle
