// Pages of keys and values, what a token sees of them, and the parts that a long view is split into.

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

// Parts begin where the view begins, and their number depends on its length alone. So a token's bits do not depend
// on the rest of the step. The host counts parts in the same way: most_parts() in ops_attend.cc.
#define TILE 128        // positions that a work-group takes together
#define MOST_PARTS 64   // kMaxSplits
#define FEW_TOKENS 4    // up to this many tokens of a sequence, each token's view is split into parts
typedef struct {
  int size, count;  // positions of a part, number of parts
} Parts;
Parts parts_of(View view, bool splits) {
  const int tiles = (view.end - view.begin + TILE - 1) / TILE;
  const int least = tiles <= 16 ? 1 : 2;
  const int size = splits ? max(least, (tiles + MOST_PARTS - 1) / MOST_PARTS) : tiles;
  const Parts parts = {size * TILE, (tiles + size - 1) / size};
  return parts;
}
bool splits_views(global const int *first_token, int sequence, int batch_invariant) {
  return batch_invariant || first_token[sequence + 1] - first_token[sequence] <= FEW_TOKENS;
}

// Scores are in units of log(2): exp2 is the exponential that devices have.
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
