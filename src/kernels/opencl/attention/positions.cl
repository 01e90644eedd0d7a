// Rotary position embedding (RoPE), and new keys and values of the cache.
#include "elements.cl"
#include "split_kv.cl"

// Rotates pair c of row r; pairs are numbered across all heads.
kernel void rotate_pairs(MATRIX(x), const long head_dim, const long num_pairs, const long first_column,
                         const int interleaved, const float factor, global const float *frequencies,
                         global const int *positions, const long rows, const long pairs) {
  FOR_EACH_ELEMENT(r, c, rows, pairs) {
    const long head = c / num_pairs, i = c % num_pairs, begin = head * head_dim + first_column;
    const long first = begin + (interleaved ? 2 * i : i), second = first + (interleaved ? 1 : num_pairs);
    const float angle = (float)positions[r] * frequencies[i];
    const float cosine = cos(angle) * factor, sine = sin(angle) * factor;
    const float a = LOAD(x, r, first), b = LOAD(x, r, second);
    STORE(x, r, first, a * cosine - b * sine);
    STORE(x, r, second, b * cosine + a * sine);
  }
}

// Multiplies rows by a factor that grows with their positions.
kernel void temper(MATRIX(x), global const int *positions, const int offset, const float scale, const float strength,
                   const long rows, const long cols) {
  FOR_EACH_ELEMENT(r, c, rows, cols) {
    const float steps = floor((float)(positions[r] + offset) / scale);
    STORE(x, r, c, LOAD(x, r, c) * (log1p(steps) * strength + 1));
  }
}

// Stores keys or values from `offset` in their page on. Reports a finite value that f16 would turn into infinity.
kernel void append_rows(MATRIX(from), global const int *positions, global const int *sequences,
                        global const int *first_page, global const ulong *pages, const int page,
                        const int cache_dtype, const long offset, volatile global ErrorCell *errors, const long rows,
                        const long cols) {
  FOR_EACH_ELEMENT(t, c, rows, cols) {
    const int position = positions[t];
    global void *to = (global void *)(page_of(pages, first_page, page, sequences[t], position) + offset);
    const float value = LOAD(from, t, c);
    store_element(to, cache_dtype, position % page * cols + c, value);
    if (cache_dtype == F16 && (float_to_f16(value) & 0x7fffu) == 0x7c00u && isfinite(value))
      report(errors, t, as_int(value), 0, 1);
  }
}
