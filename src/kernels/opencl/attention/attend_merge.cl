// Split-KV: merges the partial results that attend.cl stored in the scratch. A work-group takes a head of a token.
#include "elements.cl"
#include "split_kv.cl"

kernel void attend_merge(MATRIX(out), global const int *positions, global const int *sequences,
                        global const int *first_token, const int num_heads, const int value_dim, const int window,
                        const int chunk, global const int *selected, const int top_k, const int block,
                        const int selections, const int num_kv_heads, global const float *sinks,
                        const int batch_invariant,
                        const long first_slot, const long slots, global const float *scratch) {
  local float largest[MAX_SPLITS], sums[MAX_SPLITS], weights[MAX_SPLITS];
  const int lid = get_local_id(0), threads = get_local_size(0);
  for (long b = get_group_id(0); b < slots * num_heads; b += get_num_groups(0)) {
    const long token = first_slot + b / num_heads, head = b % num_heads;
    const Selected selection = {selected, top_k, block, selections, num_kv_heads};
    const View view = view_of_selected(positions[token], window, chunk, &selection, token,
                                       (int)(head / (num_heads / num_kv_heads)));
    const Splits splits = splits_of(view, splits_views(first_token, sequences[token], batch_invariant));
    const int count = splits.count > 1 ? splits.count : 0;  // a single split has stored its result
    global const float *values = scratch + b * MAX_SPLITS * value_dim;
    global const float *ends = scratch + slots * num_heads * MAX_SPLITS * value_dim + b * MAX_SPLITS * 2;
    barrier(CLK_LOCAL_MEM_FENCE);  // wait until the previous token's weights have been used
    for (int p = lid; p < count; p += threads) largest[p] = ends[2 * p], sums[p] = ends[2 * p + 1];
    barrier(CLK_LOCAL_MEM_FENCE);
    float most = -INFINITY, sum = 0;
    for (int p = 0; p < count; ++p) most = fmax(most, largest[p]);
    for (int p = lid; p < count; p += threads) weights[p] = exp2(largest[p] - most);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int p = 0; p < count; ++p) sum += sums[p] * weights[p];
    const WithSink all = with_sink(sinks, head, most, sum);
    for (int c = count > 0 ? lid : value_dim; c < value_dim; c += threads) {
      float value = 0;
      for (int p = 0; p < count; ++p) value += values[(long)p * value_dim + c] * weights[p];
      STORE(out, token, head * value_dim + c, value * all.shrink / all.sum);
    }
  }
}
