// Pages of keys and values, the view of a token, and the splits of a long view (split-KV).

// The page that holds a position of a sequence.
ulong page_of(global const ulong *pages, global const int *first_page, int page, int sequence, int position) {
  return pages[first_page[sequence] + position / page];
}

// The positions that a token sees: [begin, end).
typedef struct {
  int begin, end;
} View;
View view_of(int position, int window, int chunk) {
  const int begin = chunk > 0 ? position - position % chunk : 0;
  const View view = {window > 0 ? max(begin, position + 1 - window) : begin, position + 1};
  return view;
}

// What some tokens select: top_k positions, or top_k / block blocks of them. See AttentionShape.
typedef struct {
  global const int *entries;  // [tokens, selections, top_k / block]
  int top_k, block, selections, num_kv_heads;
} Selected;
bool selects(const Selected *all, int position) { return all->top_k > 0 && position >= all->top_k; }
// The selection of a token for a head of keys.
global const int *selection_of(const Selected *all, long token, int kv_head) {
  const int row = kv_head * all->selections / all->num_kv_heads;
  return all->entries + (token * all->selections + row) * (all->top_k / all->block);
}
int selected_position(const Selected *all, global const int *entries, int i) {
  return all->block == 1 ? entries[i] : entries[i / all->block] * all->block + i % all->block;
}

// With selected positions, the view of a token at position top_k or later is a range of its selection, which ends with
// the token if it has the token's own block.
View view_of_selected(int position, int window, int chunk, const Selected *all, long token, int kv_head) {
  if (!selects(all, position)) return view_of(position, window, chunk);
  View view = {0, all->top_k};
  if (all->block == 1) return view;
  const int last = selection_of(all, token, kv_head)[all->top_k / all->block - 1];
  if (last == position / all->block) view.end += position % all->block + 1 - all->block;
  return view;
}

// Splits begin where the view begins, and their number depends on its length alone. So a token's bits do not depend on
// the rest of the step. most_splits() in ops_attend.cc is the upper bound on the host.
#define TILE 128         // positions of a step of a work-group
#define MAX_SPLITS 64    // kMaxSplits
#define DECODE_TOKENS 4  // sequences with up to this many tokens in the step split the view of each token
typedef struct {
  int size, count;  // positions per split, splits
} Splits;
Splits splits_of(View view, bool split) {
  const int tiles = (view.end - view.begin + TILE - 1) / TILE;
  const int least = tiles <= 16 ? 1 : 2;
  const int size = split ? max(least, (tiles + MAX_SPLITS - 1) / MAX_SPLITS) : tiles;
  const Splits splits = {size * TILE, (tiles + size - 1) / size};
  return splits;
}
bool splits_views(global const int *first_token, int sequence, int batch_invariant) {
  return batch_invariant || first_token[sequence + 1] - first_token[sequence] <= DECODE_TOKENS;
}

// Scores are exponents of 2, because devices compute exp2.
#define LOG2E 1.44269504f

// Adds a head's sink to a sum of weights: a factor that rescales the weights to the largest score of both, and the
// sum.
typedef struct {
  float shrink, sum;
} WithSink;
WithSink with_sink(global const float *sinks, long head, float largest, float sum) {
  WithSink all = {1, sum};
  if (sinks) {
    const float sink = sinks[head] * LOG2E, most = fmax(largest, sink);
    all.shrink = exp2(largest - most);
    all.sum = sum * all.shrink + exp2(sink - most);
  }
  return all;
}
