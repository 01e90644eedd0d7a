// The indexer of sparse attention: scores of all visible positions, then the top-k of each token. With blocks, each
// head chooses the top-k of the blocks' largest scores.
#include "elements.cl"
#include "scan.cl"
#include "split_kv.cl"
#include "top_k_key.cl"

// Scores of tokens [first_token, first_token + tokens), `stride` apart. A work-item takes a position of a token.
kernel void score_positions(MATRIX(q), MATRIX(weights), global const int *positions, global const int *sequences,
                            global const int *first_page, global const ulong *pages, const int page,
                            const long key_offset, const int key_dtype, const int num_heads, const int head_dim,
                            const int top_k, const float scale, const long first_token, const long tokens,
                            const long stride, global float *scores) {
  FOR_EACH_ELEMENT(slot, j, tokens, stride) {
    const long token = first_token + slot;
    const int position = (int)j;
    if (positions[token] < top_k || position > positions[token]) continue;
    global const void *keys =
        (global const void *)(page_of(pages, first_page, page, sequences[token], position) + key_offset);
    const long key = (long)(position % page) * head_dim;
    float sum = 0;
    for (int head = 0; head < num_heads; ++head) {
      float product = 0;
      for (int d = 0; d < head_dim; ++d)
        product += LOAD(q, token, (long)head * head_dim + d) * load_element(keys, key_dtype, key + d);
      sum += LOAD(weights, token, head) * (product < 0 ? 0.0f : product);  // a NaN stays
    }
    scores[slot * stride + position] = sum * scale;
  }
}

// The scores of blocks of positions, for each head of tokens [first_token, first_token + tokens): [tokens, num_heads,
// stride]. A work-item takes a block of a head. A NaN comes before all numbers. The last local_blocks are infinite.
kernel void score_blocks(MATRIX(q), global const int *positions, global const int *sequences,
                         global const int *first_page, global const ulong *pages, const int page,
                         const long key_offset, const int key_dtype, const int num_heads, const int head_dim,
                         const int top_k, const int block, const int local_blocks, const long first_token,
                         const long tokens, const long stride, global float *scores) {
  FOR_EACH_ELEMENT(row, b, tokens * num_heads, stride) {
    const long token = first_token + row / num_heads, head = row % num_heads;
    const int last = positions[token], own = last / block;
    if (last < top_k || b > own) continue;
    const int begin = (int)b * block, end = min(begin + block, last + 1);
    float most = -INFINITY;
    for (int position = begin; position < end; ++position) {
      global const void *keys =
          (global const void *)(page_of(pages, first_page, page, sequences[token], position) + key_offset);
      const long key = (long)(position % page) * head_dim;
      float product = 0;
      for (int d = 0; d < head_dim; ++d)
        product += LOAD(q, token, head * head_dim + d) * load_element(keys, key_dtype, key + d);
      most = isnan(most) || most > product ? most : product;
    }
    scores[row * stride + b] = b > own - local_blocks ? INFINITY : most;
  }
}

#define BINS 256
#define MOST_ITEMS 256

uint order_of(uint bits) { return (uint)(top_k_key(bits, 0) >> 32); }

// A work-group takes a row of scores: of a token, or of one of its `heads`. It finds the k-th largest score by its
// bits, 8 at a time, and then writes the positions, or blocks, in order. `scores` are read as their bits.
kernel void select_positions(global const uint *scores, const long stride, global const int *positions,
                             const int top_k, const int block, const int heads, const long first_token,
                             const long tokens, global int *selected) {
  local int bins[BINS];
  local uint scratch[MOST_ITEMS];
  local uint least;
  local int ties;
  const uint item = get_local_id(0), items = get_local_size(0);
  const int k = top_k / block;
  for (long slot = get_group_id(0); slot < tokens * heads; slot += get_num_groups(0)) {
    const long token = first_token + slot / heads;
    const int count = positions[token] / block + 1;
    if (count <= k) continue;  // the same in all work-items
    global const uint *row = scores + slot * stride;
    barrier(CLK_LOCAL_MEM_FENCE);  // wait until the previous token's threshold has been read
    if (item == 0) least = 0, ties = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
      for (uint i = item; i < BINS; i += items) bins[i] = 0;
      barrier(CLK_LOCAL_MEM_FENCE);
      const uint known = least;
      for (int i = item; i < count; i += items) {
        const uint order = order_of(row[i]);
        const bool candidate = shift == 24 || order >> (shift + 8) == known >> (shift + 8);
        if (candidate) atomic_inc(&bins[order >> shift & (BINS - 1)]);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      if (item == 0) {
        int bin = BINS - 1, left = ties;
        for (; bins[bin] < left; --bin) left -= bins[bin];
        least = known | (uint)bin << shift;
        ties = left;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    const uint bound = least, wanted = (uint)ties;
    global int *to = selected + (token * heads + slot % heads) * k;
    uint above = 0, equal = 0;  // before this round
    for (int from = 0; from < count; from += items) {
      const int i = from + (int)item;
      const uint order = i < count ? order_of(row[i]) : 0;
      const uint is_above = i < count && order > bound, is_equal = i < count && order == bound;
      uint total_above, total_equal;
      const uint own_above = above + scan_before(scratch, is_above, &total_above);
      const uint own_equal = equal + scan_before(scratch, is_equal, &total_equal);
      if (is_above || (is_equal && own_equal < wanted)) to[own_above + min(own_equal, wanted)] = i;
      above += total_above;
      equal += total_equal;
    }
  }
}
