// Attention on host memory, split-KV (Dao et al., "Flash-Decoding", 2023). A context is split into
// KV blocks that begin at multiples of kKvBlock. Their partial results depend on the query and the
// block alone, and are merged in the order of positions by an online softmax (Milakov and
// Gimelshein, "Online normalizer calculation for softmax", 2018). So threads and the rest of the
// batch change no bit.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "base/try.h"
#include "kernels/cpu/ops/attention/attend_items.h"
#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {
namespace {

using cpu::AttendArgs;
using cpu::AttendRow;
using cpu::kAttendRows;
using cpu::kKvBlock;
using cpu::kPackedRows;

// Sequences with at least this many tokens in a step are multiplied in bf16, if the request allows
// it.
constexpr int64_t kPackedTokens = 16;

// Rows are the queries of one sequence that read the same keys: heads_per_kv heads of every token,
// token by token. A row block is up to block_rows of these rows, for one head of keys.
struct RowBlocks {
  const Matrix& q;
  const Matrix& out;
  const Batch& batch;
  const AttentionShape& shape;
  const cpu::VectorOps& vector;
  int64_t threads;

  int64_t heads_per_kv() const { return shape.num_heads / shape.num_kv_heads; }
  // The number of tokens of sequence s that attend to all positions up to their own. Without
  // selections: all of its tokens.
  int64_t tokens(int64_t s) const {
    const int64_t first = batch.first_token[s], all = batch.first_token[s + 1] - first;
    if (shape.selected == nullptr || all == 0) return all;
    return std::clamp<int64_t>(shape.first_selecting() - batch.positions[first], 0, all);
  }
  int64_t rows(int64_t s) const { return tokens(s) * heads_per_kv(); }
  // Packing keys and values for bf16 products costs as much as multiplying a few rows.
  bool may_pack() const {
    return shape.bf16_products && !shape.batch_invariant && vector.attend_bf16 != nullptr &&
           shape.cache.dtype != DType::kI8 && cpu::packs(shape.head_dim, shape.value_dim);
  }
  bool packs(int64_t s) const { return may_pack() && tokens(s) >= kPackedTokens; }
  // Larger blocks share the packing, if all threads still get blocks.
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
  int64_t kv_blocks() const { return (longest() + kKvBlock - 1) / kKvBlock; }
  int64_t longest() const {
    int64_t end = 0;
    for (int64_t s = 0; s < batch.num_sequences; ++s)
      if (tokens(s) > 0)
        end = std::max<int64_t>(end, batch.positions[batch.first_token[s] + tokens(s) - 1] + 1);
    return end;
  }
};

struct RowBlock {
  AttendRow rows[kPackedRows];
  AttendArgs args;                        // keys and values are set per KV block
  int64_t first_kv_block, last_kv_block;  // [first, last)
  std::byte* const* pages;                // of the sequence
  int64_t keys, values;                   // byte offsets in a page
  int64_t key_scales, value_scales;       // likewise
  float value_scale;                      // multiplies every value
  bool packed;                            // multiplied by attend_bf16
};

// Finds block i of all. Its rows write to the output and start empty.
void find(const RowBlocks& all, int64_t i, RowBlock& block) {
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
  block.first_kv_block = least / kKvBlock;
  block.last_kv_block = (most + kKvBlock - 1) / kKvBlock;
  block.args.rows = block.rows;
  block.args.num_rows = num_rows;
  const LayerCache& cache = shape.cache;
  const int64_t positions = kv * all.batch.page;
  block.pages = all.batch.pages + all.batch.first_page[s];
  block.keys = cache.keys + positions * cached_bytes(cache.dtype, shape.head_dim);
  block.values = cache.values + positions * cached_bytes(cache.dtype, shape.value_dim);
  block.key_scales = cache.key_scales + positions * static_cast<int64_t>(sizeof(float));
  block.value_scales = cache.value_scales + positions * static_cast<int64_t>(sizeof(float));
  block.args.cache = cpu::cache_type(cache.dtype);
  block.args.key_stride = cached_columns(cache.dtype, shape.head_dim);
  block.args.value_stride = cached_columns(cache.dtype, shape.value_dim);
  block.args.head_dim = shape.head_dim;
  block.args.value_dim = shape.value_dim;
  block.args.scale = shape.scale * cache.key_scale;
  block.value_scale = cache.value_scale;
  block.packed = all.packs(s);
}

// The first key of a KV block; null if no row of the block sees it.
const std::byte* keys_of(const RowBlock& block, DType cache, int64_t kv_block, int64_t page) {
  if (kv_block < block.first_kv_block || kv_block >= block.last_kv_block) return nullptr;
  const int64_t position = kv_block * kKvBlock;
  return block.pages[position / page] + block.keys +
         position % page * cached_bytes(cache, block.args.head_dim);
}

// Computes each row's partial result of one KV block into `partials`, whose `out` pointers are set.
// `next`: keys to prefetch. `new_queries`: `scratch` does not hold the packed queries of the block.
void attend_block(const cpu::VectorOps& vector, DType cache, const RowBlock& block,
                  int64_t kv_block, int64_t page, const std::byte* next, AttendRow* partials,
                  float* scratch, bool new_queries = true) {
  AttendArgs args = block.args;
  // A KV block lies in one page. Positions are relative to that page.
  const int64_t at = kv_block * kKvBlock / page, first = at * page;
  for (int r = 0; r < args.num_rows; ++r) {
    float* const out = partials[r].out;
    partials[r] = block.rows[r];
    partials[r].begin -= first, partials[r].end -= first;
    partials[r].out = out;
  }
  args.rows = partials;
  args.keys = block.pages[at] + block.keys;
  args.values = block.pages[at] + block.values;
  args.from = kv_block * kKvBlock - first;
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
    // A packed block may have kPackedRows rows if it falls back here, for a value that is not
    // finite.
    const int rows = args.num_rows;
    for (int r = 0; r < rows; r += kAttendRows) {
      args.rows = partials + r, args.num_rows = std::min(kAttendRows, rows - r);
      vector.attend(args);
    }
    return;
  }
  args.key_scales = reinterpret_cast<const float*>(block.pages[at] + block.key_scales);
  args.value_scales = reinterpret_cast<const float*>(block.pages[at] + block.value_scales);
  vector.attend_int8(args);
}

void merge(const cpu::VectorOps& vector, RowBlock& block, int64_t kv_block,
           const AttendRow* partials) {
  const int64_t from = kv_block * kKvBlock, to = from + kKvBlock;
  for (int r = 0; r < block.args.num_rows; ++r) {
    AttendRow& row = block.rows[r];
    if (std::max(row.begin, from) >= std::min(row.end, to)) continue;
    vector.attend_merge(partials[r], block.args.value_dim, row);
  }
}

void start(RowBlock& block) {
  for (int r = 0; r < block.args.num_rows; ++r)
    std::fill_n(block.rows[r].out, block.args.value_dim, 0.0f);
}
void finish(const cpu::VectorOps& vector, RowBlock& block) {
  for (int r = 0; r < block.args.num_rows; ++r) {
    float* const out = block.rows[r].out;
    vector.scale(out, block.value_scale / block.rows[r].sum, block.args.value_dim, out);
  }
}

// Floats of scratch for the rows of one block.
int64_t block_scratch(const RowBlocks& all) {
  const AttentionShape& shape = all.shape;
  const int64_t codes = shape.cache.dtype == DType::kI8 ? cpu::int8_scratch(shape.head_dim) : 0;
  const int64_t packed = all.may_pack() ? cpu::bf16_scratch(shape.head_dim, shape.value_dim) : 0;
  return cpu::kAttendScratch + codes + packed;
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
  if (shape.selected != nullptr) attend_selected(q, batch, shape, out);
  const RowBlocks all{q, out, batch, shape, vector_, pool_.size()};
  const int64_t blocks = all.total(), kv_blocks = all.kv_blocks();
  if (blocks == 0) return {};
  const int64_t dim = shape.value_dim, scratch = block_scratch(all);
  std::atomic<int64_t> next{0};
  const auto whole = cpu::dynamic_schedule(next, blocks, [&](int thread, int64_t i) {
    float* const own = attend_scratch(thread, scratch + all.largest_block() * dim);
    AttendRow partials[kPackedRows];
    for (int r = 0; r < all.largest_block(); ++r) partials[r].out = own + scratch + r * dim;
    RowBlock block;
    // The last tokens see most positions: start with them.
    find(all, blocks - 1 - i, block);
    start(block);
    for (int64_t s = block.first_kv_block; s < block.last_kv_block; ++s) {
      attend_block(vector_, shape.cache.dtype, block, s, batch.page,
                   keys_of(block, shape.cache.dtype, s + 1, batch.page), partials, own,
                   s == block.first_kv_block);
      merge(vector_, block, s, partials);
    }
    finish(vector_, block);
  });
  const int64_t threads = pool_.size();
  const int64_t work = blocks * all.most_rows() * all.longest() * (shape.head_dim + dim);
  if (threads == 1 || work < cpu::kWorthThreads)
    whole(0);
  else if (blocks >= 4 * threads || kv_blocks == 1)
    pool_.run(whole);
  else
    attend_by_kv_blocks(q, batch, shape, out);
  return {};
}

// Split-KV over threads, for few row blocks with a long context: a round of KV blocks at a time.
void CpuOps::attend_by_kv_blocks(const Matrix& q, const Batch& batch, const AttentionShape& shape,
                                 const Matrix& out) {
  const RowBlocks all{q, out, batch, shape, vector_, pool_.size()};
  const int64_t blocks = all.total(), kv_blocks = all.kv_blocks(), rows = all.most_rows();
  const int64_t round = std::min(kv_blocks, 16 * pool_.size() / blocks + 1);
  // For each row block: its rows, then their partial results of each KV block of the round.
  std::vector<AttendRow>& table = attending_.rows;
  std::vector<float>& partials = attending_.partials;
  table.resize(std::max<size_t>(table.size(), blocks * (1 + round) * rows));
  partials.resize(std::max<size_t>(partials.size(), blocks * round * rows * shape.value_dim));
  auto rows_of = [&](int64_t b, int64_t index) { return &table[(b * (1 + round) + index) * rows]; };
  int64_t begin = kv_blocks;
  for (int64_t b = 0; b < blocks; ++b) {
    RowBlock block;
    find(all, b, block);
    start(block);
    std::copy_n(block.rows, block.args.num_rows, rows_of(b, 0));
    begin = std::min(begin, block.first_kv_block);
    for (int64_t i = 0; i < round; ++i) {
      for (int64_t r = 0; r < rows; ++r)
        rows_of(b, 1 + i)[r].out = &partials[((b * round + i) * rows + r) * shape.value_dim];
    }
  }
  for (; begin < kv_blocks; begin += round) {
    const int64_t end = std::min(begin + round, kv_blocks);
    std::atomic<int64_t> next{0};
    // Heads that are adjacent in memory are processed one after another.
    pool_.run(cpu::dynamic_schedule(next, blocks * (end - begin), [&](int thread, int64_t i) {
      RowBlock block;
      find(all, i % blocks, block);
      const int64_t s = begin + i / blocks;
      if (s < block.first_kv_block || s >= block.last_kv_block) return;
      // Prefetch the item that this thread probably takes next.
      const int64_t after = i + pool_.size();
      RowBlock other;
      find(all, after % blocks, other);
      const std::byte* const ahead =
          keys_of(other, shape.cache.dtype, begin + after / blocks, batch.page);
      attend_block(vector_, shape.cache.dtype, block, s, batch.page, ahead,
                   rows_of(i % blocks, 1 + s - begin), attend_scratch(thread, block_scratch(all)));
    }));
    const int64_t work = (end - begin) * rows * shape.value_dim;
    split_rows(blocks, work, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) {
        RowBlock block;
        find(all, b, block);
        std::copy_n(rows_of(b, 0), block.args.num_rows, block.rows);
        const int64_t from = std::max(begin, block.first_kv_block);
        for (int64_t s = from; s < std::min(end, block.last_kv_block); ++s)
          merge(vector_, block, s, rows_of(b, 1 + s - begin));
        if (end == kv_blocks) finish(vector_, block);
        std::copy_n(block.rows, block.args.num_rows, rows_of(b, 0));
      }
    });
  }
}

}  // namespace moracle
