// Operations around the layers of a model, except positions and attention.
#include "elements.cl"
#include "sum_group.cl"

kernel void embed(MATRIX(table), global const int *ids, MATRIX(out), const long rows, const long cols) {
  FOR_EACH_ELEMENT(r, c, rows, cols) STORE(out, r, c, LOAD(table, ids[r], c));
}

kernel void add_elements(MATRIX(x), MATRIX(y), const long rows, const long cols) {
  FOR_EACH_ELEMENT(r, c, rows, cols) STORE(x, r, c, LOAD(x, r, c) + LOAD(y, r, c));
}

// Copies `count` columns of each head; `copied` are those of all heads.
kernel void copy_heads(MATRIX(from), const long from_dim, MATRIX(to), const long to_dim, const long count,
                       const long rows, const long copied) {
  FOR_EACH_ELEMENT(r, i, rows, copied) {
    const long head = i / count, c = i % count;
    STORE(to, r, head * to_dim + c, LOAD(from, r, head * from_dim + c));
  }
}

// A work-group normalizes each run of `size` columns. x and out may be the same: each work-item writes only the
// columns that it reads.
kernel void rms_norm(MATRIX(x), global const float *weight, const long size, const float epsilon, MATRIX(out),
                     const long rows, const long runs) {
  local float sums[MOST_SUMMED];
  const int lid = get_local_id(0), threads = get_local_size(0);
  for (long b = get_group_id(0); b < rows * runs; b += get_num_groups(0)) {
    const long r = b / runs, first = b % runs * size;
    float squares = 0;
    for (long c = lid; c < size; c += threads) {
      const float value = LOAD(x, r, first + c);
      squares += value * value;
    }
    const float scale = 1.0f / sqrt(sum_group(sums, squares) / (float)size + epsilon);
    for (long c = lid; c < size; c += threads) STORE(out, r, first + c, LOAD(x, r, first + c) * scale * weight[c]);
  }
}

// A work-group normalizes each row. x and out may be the same.
kernel void layer_norm(MATRIX(x), global const float *weight, global const float *bias, const float epsilon,
                       MATRIX(out), const long rows, const long cols) {
  local float sums[MOST_SUMMED];
  const int lid = get_local_id(0), threads = get_local_size(0);
  for (long r = get_group_id(0); r < rows; r += get_num_groups(0)) {
    float sum = 0, squares = 0;
    for (long c = lid; c < cols; c += threads) sum += LOAD(x, r, c);
    const float mean = sum_group(sums, sum) / (float)cols;
    for (long c = lid; c < cols; c += threads) {
      const float value = LOAD(x, r, c) - mean;
      squares += value * value;
    }
    const float scale = 1.0f / sqrt(sum_group(sums, squares) / (float)cols + epsilon);
    for (long c = lid; c < cols; c += threads) STORE(out, r, c, (LOAD(x, r, c) - mean) * scale * weight[c] + bias[c]);
  }
}
