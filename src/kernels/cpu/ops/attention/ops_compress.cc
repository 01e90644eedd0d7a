// Entries of compressed attention on host memory. An item is one entry that the step completes.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/try.h"
#include "kernels/cpu/ops/attention/attend_items.h"
#include "kernels/cpu/ops/recurrent/recurrent_tokens.h"

namespace moracle {
namespace ops_compress {
namespace {

struct Entry {
  int64_t sequence, number;
};

// The tokens of a sequence: those of the step in `rows`, earlier ones in the state.
struct Rows {
  const Matrix& rows;
  const CompressShape& shape;
  RecurrentTokens tokens;
  int64_t position;  // of the step's first token

  const float* at(int64_t p) const {
    if (p >= position) return f32_row(rows, tokens.first + p - position);
    return tokens.before + p % shape.rows() * shape.row_size();
  }
};

// Σ softmax(gate + bias) · value by column. `scratch` [2 · dim]: largest gates, and sums.
void sum_entry(const Rows& rows, const float* bias, int64_t number, float* out, float* scratch) {
  const CompressShape& shape = rows.shape;
  const int64_t dim = shape.dim, columns = shape.columns(), begin = number * shape.rate;
  float *const largest = scratch, *const sums = scratch + dim;
  // Calls work(values, gates, bias) for the tokens of each series.
  const auto each_token = [&](const auto& work) {
    const auto series = [&](int64_t first, int64_t column) {
      for (int64_t j = 0; first >= 0 && j < shape.rate; ++j) {
        const float* const row = rows.at(first + j);
        work(row + column, row + columns + column, bias + j * columns + column);
      }
    };
    if (shape.overlap) series(begin - shape.rate, 0);
    series(begin, shape.overlap ? dim : 0);
  };
  std::fill_n(largest, dim, -INFINITY);
  each_token([&](const float*, const float* gates, const float* own_bias) {
    for (int64_t c = 0; c < dim; ++c) largest[c] = std::max(largest[c], gates[c] + own_bias[c]);
  });
  std::fill_n(sums, dim, 0.0f);
  std::fill_n(out, dim, 0.0f);
  each_token([&](const float* values, const float* gates, const float* own_bias) {
    for (int64_t c = 0; c < dim; ++c) {
      const float weight = std::exp(gates[c] + own_bias[c] - largest[c]);
      sums[c] += weight;
      out[c] += weight * values[c];
    }
  });
  for (int64_t c = 0; c < dim; ++c) out[c] /= sums[c];
}

// The mean of the values.
void average_entry(const Rows& rows, int64_t number, float* out) {
  const int64_t dim = rows.shape.dim, rate = rows.shape.rate;
  std::fill_n(out, dim, 0.0f);
  for (int64_t j = 0; j < rate; ++j) {
    const float* const row = rows.at(number * rate + j);
    for (int64_t c = 0; c < dim; ++c) out[c] += row[c];
  }
  for (int64_t c = 0; c < dim; ++c) out[c] /= static_cast<float>(rate);
}

// Keeps the last rows() tokens of each sequence.
void write_state(const Matrix& rows, const CompressShape& shape, const RecurrentTokens& tokens,
                 int64_t position) {
  const int64_t size = shape.row_size(), kept = shape.rows();
  const int64_t count = tokens.last - tokens.first;
  if (count < kept && tokens.before != nullptr)
    std::memcpy(tokens.after, tokens.before, static_cast<size_t>(kept * size) * sizeof(float));
  for (int64_t i = std::max<int64_t>(0, count - kept); i < count; ++i)
    std::copy_n(f32_row(rows, tokens.first + i), size, tokens.after + (position + i) % kept * size);
}

}  // namespace
}  // namespace ops_compress

Status CpuOps::compress(const Matrix& rows, const CompressWeights& weights,
                        const CompressShape& shape, const Batch& batch, Stream stream) {
  using ops_compress::Entry;
  const auto position_of = [&](const RecurrentTokens& tokens) {
    return static_cast<int64_t>(batch.positions[tokens.first]);
  };
  std::vector<Entry> entries;
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    const RecurrentTokens tokens = recurrent_tokens(batch, s, shape.state);
    if (tokens.first == tokens.last) continue;
    const int64_t position = position_of(tokens), end = position + tokens.last - tokens.first;
    for (int64_t e = position / shape.rate; (e + 1) * shape.rate <= end; ++e)
      entries.push_back({s, e});
  }
  const std::lock_guard lock(attending_.mutex);
  const auto count = static_cast<int64_t>(entries.size());
  const int64_t dim = shape.dim;
  std::vector<float>& sums = attending_.scores;
  sums.resize(std::max(sums.size(), static_cast<size_t>(count * dim)));
  const Matrix made{sums.data(), DType::kF32, count, dim, dim};
  std::atomic<int64_t> next{0};
  const auto items = cpu::dynamic_schedule(next, count, [&](int thread, int64_t i) {
    const RecurrentTokens tokens = recurrent_tokens(batch, entries[i].sequence, shape.state);
    const ops_compress::Rows own{rows, shape, tokens, position_of(tokens)};
    if (shape.average)
      ops_compress::average_entry(own, entries[i].number, f32_row(made, i));
    else
      ops_compress::sum_entry(own, weights.bias, entries[i].number, f32_row(made, i),
                              attend_scratch(thread, 2 * dim));
  });
  // An exponential costs about as much as 16 products.
  count* shape.rows() * dim * 16 < cpu::kWorthThreads ? items(0) : pool_.run(items);
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    const RecurrentTokens tokens = recurrent_tokens(batch, s, shape.state);
    if (tokens.first < tokens.last)
      ops_compress::write_state(rows, shape, tokens, position_of(tokens));
  }
  // Entries are the positions of pages that hold so many.
  std::vector<int32_t> positions, places, sequences;
  Batch of_entries = batch;
  of_entries.num_tokens = count;
  of_entries.page = entries_per_page(shape.rate, batch.page);
  for (const Entry& entry : entries) {
    const EntryPlace place = entry_place(entry.number, shape.rate, batch.page);
    positions.push_back(static_cast<int32_t>(entry.number * shape.rate));
    places.push_back(static_cast<int32_t>(place.page * of_entries.page + place.row));
    sequences.push_back(static_cast<int32_t>(entry.sequence));
  }
  of_entries.positions = places.data();
  of_entries.sequences = sequences.data();
  if (weights.norm != nullptr)
    MORACLE_CHECK(rms_norm(made, weights.norm, dim, shape.epsilon, made, stream));
  if (shape.rotary.num_pairs > 0)
    MORACLE_CHECK(rotate(made, shape.rotary, weights.frequencies, positions.data(), stream));
  Matrix none = made;
  none.cols = 0;
  const LayerCache& cache = shape.cache;
  const LayerCache to = shape.index_keys
                            ? LayerCache{.dtype = cache.index_dtype, .keys = cache.entry_keys}
                            : LayerCache{.dtype = cache.dtype, .keys = cache.entries};
  return append(made, none, of_entries, to, stream);
}

}  // namespace moracle
