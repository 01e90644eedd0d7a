// Attention for any sizes and dtypes. A work-group takes a split of one token's view, and HEADS heads that share their
// keys (GQA). It goes through the split in tiles with an online softmax (Milakov and Gimelshein, "Online normalizer
// calculation for softmax", 2018). attend_merge.cl merges the splits of a long view (Dao et al., "Flash-Decoding",
// 2023). Compiled for each HEADS (1, 4, 8) and CACHE, the dtype of keys and values.
#include "elements.cl"
#include "split_kv.cl"

// One number per head.
#if HEADS == 1
typedef float PerHead;
#elif HEADS == 4
typedef float4 PerHead;
#else
typedef float8 PerHead;
#endif
#define OF_HEAD(numbers, head) (((const float *)&(numbers))[head])

// fma where it is fast, so that all variants of the kernel have the same bits.
#ifdef FP_FAST_FMAF
#define MULTIPLY_ADD(a, b, c) fma(a, b, c)
#else
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif

#define CACHE_BYTES (CACHE == F32 ? 4 : 2)

// Loads eight elements of a row that is aligned to 16 bytes.
float8 load_eight(global const void *row, long at) {
#if CACHE == F32
  global const float4 *fours = (global const float4 *)((global const float *)row + at);
  return (float8)(fours[0], fours[1]);
#else
  const uint4 bits = *(global const uint4 *)((global const ushort *)row + at);
#if CACHE == BF16
  const float4 even = as_float4(bits << 16), odd = as_float4(bits & 0xffff0000u);
  return (float8)(even.s0, odd.s0, even.s1, odd.s1, even.s2, odd.s2, even.s3, odd.s3);
#else
  const ushort8 halves = as_ushort8(bits);
  return (float8)(f16_to_float(halves.s0), f16_to_float(halves.s1), f16_to_float(halves.s2), f16_to_float(halves.s3),
                  f16_to_float(halves.s4), f16_to_float(halves.s5), f16_to_float(halves.s6), f16_to_float(halves.s7));
#endif
#endif
}

// The products of a key with each head's query, added in the order of columns.
PerHead score_of(ulong row, local const PerHead *query, int head_dim) {
  global const void *key = (global const void *)row;
  PerHead sum = (PerHead)(0.0f);
  if (head_dim % 8 == 0 && row % 16 == 0) {
    for (int d = 0; d < head_dim; d += 8) {
      const float8 eight = load_eight(key, d);
      sum = MULTIPLY_ADD(query[d], (PerHead)(eight.s0), sum);
      sum = MULTIPLY_ADD(query[d + 1], (PerHead)(eight.s1), sum);
      sum = MULTIPLY_ADD(query[d + 2], (PerHead)(eight.s2), sum);
      sum = MULTIPLY_ADD(query[d + 3], (PerHead)(eight.s3), sum);
      sum = MULTIPLY_ADD(query[d + 4], (PerHead)(eight.s4), sum);
      sum = MULTIPLY_ADD(query[d + 5], (PerHead)(eight.s5), sum);
      sum = MULTIPLY_ADD(query[d + 6], (PerHead)(eight.s6), sum);
      sum = MULTIPLY_ADD(query[d + 7], (PerHead)(eight.s7), sum);
    }
  } else {
    for (int d = 0; d < head_dim; ++d)
      sum = MULTIPLY_ADD(query[d], (PerHead)(load_element(key, CACHE, d)), sum);
  }
  return sum;
}

#define PARTIALS 16  // results of the first step of a reduction, which the second step reduces

// `query` and `found` are local memory for head_dim and value_dim numbers of each head. `splits_stride` is the number
// of splits launched for each view. `selected`, `top_k`, `block`, `selections`: see AttentionShape. Tokens are
// [first_slot, first_slot + slots) of the batch.
kernel void attend(MATRIX(q), MATRIX(out), global const int *positions, global const int *sequences,
                   global const int *first_token, global const int *first_page, global const ulong *pages,
                   const int page, const long key_offset, const long value_offset, const int num_heads,
                   const int num_kv_heads, const int head_dim, const int value_dim, const float scale,
                   const int window, const int chunk, global const int *selected, const int top_k,
                   const int block, const int selections,
                   global const float *sinks, const int batch_invariant, const long first_slot, const long slots,
                   const int splits_stride, global float *scratch, local PerHead *query, local PerHead *found) {
  local PerHead scores[TILE], partial[PARTIALS];
  local ulong value_rows[TILE];
  const int lid = get_local_id(0), threads = get_local_size(0), partials = min(PARTIALS, threads);
  const int of_kv = num_heads / num_kv_heads, head_tiles = (of_kv + HEADS - 1) / HEADS;
  const long key_row = (long)num_kv_heads * head_dim * CACHE_BYTES;
  const long value_row = (long)num_kv_heads * value_dim * CACHE_BYTES;
  const long of_split = (long)num_kv_heads * head_tiles, groups = of_split * splits_stride * slots;
  for (long b = get_group_id(0); b < groups; b += get_num_groups(0)) {
    // Consecutive work-groups take heads that are adjacent in memory.
    const int kv = b % num_kv_heads, tile_of_heads = b / num_kv_heads % head_tiles * HEADS;
    const int first_head = kv * of_kv + tile_of_heads, heads = min(HEADS, of_kv - tile_of_heads);
    const int split = b / of_split % splits_stride;
    const long slot = b / of_split / splits_stride, token = first_slot + slot;
    const int sequence = sequences[token];
    const Selected selection = {selected, top_k, block, selections, num_kv_heads};
    const View view = view_of_selected(positions[token], window, chunk, &selection, token, kv);
    const bool is_selected = selects(&selection, positions[token]);
    global const int *entries = is_selected ? selection_of(&selection, token, kv) : selected;
    const Splits splits = splits_of(view, splits_views(first_token, sequence, batch_invariant));
    // A split past the last one has no positions and stores nothing.
    const int begin = split < splits.count ? view.begin + split * splits.size : view.end;
    const int end = min(begin + splits.size, view.end);
    barrier(CLK_LOCAL_MEM_FENCE);  // wait until the previous token's numbers have been read
    for (int i = lid; i < head_dim * HEADS; i += threads) {
      const int head = i / head_dim, d = i % head_dim;
      ((local float *)query)[d * HEADS + head] =
          head < heads ? LOAD(q, token, (long)(first_head + head) * head_dim + d) : 0.0f;
    }
    for (int c = lid; c < value_dim; c += threads) found[c] = (PerHead)(0.0f);
    PerHead largest = (PerHead)(-INFINITY), sum = (PerHead)(0.0f);  // sum: of this work-item's positions
    for (int from = begin; from < end; from += TILE) {
      const int count = min(TILE, end - from);
      barrier(CLK_LOCAL_MEM_FENCE);  // wait for the query, and until the previous scores have been used
      for (int j = lid; j < TILE; j += threads) {
        PerHead score = (PerHead)(-INFINITY);
        if (j < count) {
          const int position = is_selected ? selected_position(&selection, entries, from + j) : from + j;
          const int in_page = position % page;
          const ulong base = page_of(pages, first_page, page, sequence, position);
          value_rows[j] = base + value_offset + in_page * value_row + (long)kv * value_dim * CACHE_BYTES;
          score = score_of(base + key_offset + in_page * key_row + (long)kv * head_dim * CACHE_BYTES, query, head_dim) *
                  (scale * LOG2E);
        }
        scores[j] = score;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      if (lid < partials) {
        PerHead most = scores[lid];
        for (int j = lid + partials; j < TILE; j += partials) most = fmax(most, scores[j]);
        partial[lid] = most;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      PerHead most = largest;
      for (int i = 0; i < partials; ++i) most = fmax(most, partial[i]);
      const PerHead shrink = exp2(largest - most);
      largest = most;
      sum *= shrink;
      for (int j = lid; j < count; j += threads) {
        const PerHead weight = exp2(scores[j] - most);
        scores[j] = weight;
        sum += weight;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int c = lid; c < value_dim; c += threads) {
        PerHead added = (PerHead)(0.0f);
        for (int j = 0; j < count; ++j) {
          const float value = load_element((global const void *)value_rows[j], CACHE, c);
          added = MULTIPLY_ADD(scores[j], (PerHead)(value), added);
        }
        found[c] = MULTIPLY_ADD(found[c], shrink, added);
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    scores[lid] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lid < partials) {
      PerHead own = scores[lid];
      for (int i = lid + partials; i < threads; i += partials) own += scores[i];
      partial[lid] = own;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    sum = partial[0];
    for (int i = 1; i < partials; ++i) sum += partial[i];
    if (begin < end) {
      // Each work-item reads only the columns that it computed.
      local const float *values = (local const float *)found;
      for (int h = 0; h < heads; ++h) {
        const long head = first_head + h;
        if (splits.count == 1) {
          const WithSink all = with_sink(sinks, head, OF_HEAD(largest, h), OF_HEAD(sum, h));
          for (int c = lid; c < value_dim; c += threads)
            STORE(out, token, head * value_dim + c, values[c * HEADS + h] * all.shrink / all.sum);
        } else {
          const long at = (slot * num_heads + head) * MAX_SPLITS + split;
          global float *ends = scratch + slots * num_heads * MAX_SPLITS * value_dim + at * 2;
          for (int c = lid; c < value_dim; c += threads) scratch[at * value_dim + c] = values[c * HEADS + h];
          if (lid == 0) ends[0] = OF_HEAD(largest, h), ends[1] = OF_HEAD(sum, h);
        }
      }
    }
  }
}
