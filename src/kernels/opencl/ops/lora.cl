// Low-rank adapters (LoRA) beside a grouped GEMM. A work-group handles each row; each row may have any adapter.
#include "elements.cl"
#include "experts.cl"

#define MOST_THREADS 256
#define CHUNK 512  // ranks per pass: sums of A x that are kept at once
#define LANES 32   // work-items that share one sum

// The part of (row a_row of A) times x that one lane adds.
float lane_sum(MATRIX(a), MATRIX(x), long a_row, long source, long k, uint lane, uint lanes) {
  float sum = 0;
  for (long c = lane; c < k; c += lanes) sum += LOAD(a, a_row, c) * LOAD(x, source, c);
  return sum;
}

kernel void add_lora(MATRIX(x), global const int *row_index, global const int *offsets, global const int *row_token,
                     global const int *lora_ids, const long adapters, MATRIX(a), MATRIX(b), const long num_experts,
                     const long num_slices, const long rank, const long n, const long k, MATRIX(y), const long rows,
                     volatile global ErrorCell *errors) {
  local float partial[MOST_THREADS], sums[CHUNK];
  const uint id = (uint)get_local_id(0), size = (uint)get_local_size(0);
  const uint lanes = min((uint)LANES, size), teams = size / lanes, team = id / lanes;
  const long columns = n / num_slices;
  for (long r = get_group_id(0); r < rows; r += get_num_groups(0)) {
    const long expert = offsets ? expert_of(offsets, num_experts, r) : 0;
    if (expert >= num_experts) return;  // rows are in order: later rows have no expert either
    const int token = row_token ? row_token[r] : (int)r, adapter = lora_ids[token];
    const bool adds = adapter >= 0 && adapter < adapters;
    if (!adds && adapter != -1 && id == 0) report(errors, token, adapter, adapters, 1);
    const long source = row_index ? row_index[r] : r, pair = adapter * num_experts + expert;
    for (long slice = 0; slice < (adds ? num_slices : 0); ++slice) {
      for (long first = 0; first < rank; first += CHUNK) {
        const long ranks = min((long)CHUNK, rank - first), a_row = (pair * num_slices + slice) * rank + first;
        // Each team multiplies one row of A at a time. All work-items stay in the loop for its barriers.
        for (long j = 0; j < ranks; j += teams) {
          if (team < teams && j + team < ranks)
            partial[id] = lane_sum(a, a_stride, a_dtype, x, x_stride, x_dtype, a_row + j + team, source, k, id % lanes,
                                   lanes);
          // After this barrier every work-item has used the sums of the previous chunk.
          barrier(CLK_LOCAL_MEM_FENCE);
          if (id < teams && j + id < ranks) {
            float sum = 0;
            for (uint lane = 0; lane < lanes; ++lane) sum += partial[id * lanes + lane];
            sums[j + id] = sum;
          }
          barrier(CLK_LOCAL_MEM_FENCE);
        }
        for (long column = slice * columns + id; column < (slice + 1) * columns; column += size) {
          float delta = 0;
          for (long j = 0; j < ranks; ++j) delta += LOAD(b, pair * n + column, first + j) * sums[j];
          // Skip zeros: -0 + 0 would change the sign of a zero.
          if (delta != 0) STORE(y, r, column, LOAD(y, r, column) + delta);
        }
      }
    }
  }
}
