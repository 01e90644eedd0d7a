// The gated delta rule in chunks of tokens (vector_delta.h).
#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/cpu/ops/recurrent/gated_delta_rule.h"
#include "kernels/cpu/ops/recurrent/state_strips.h"

namespace moracle::gated_delta_rule {
namespace {

/// For the value heads of a key head. Each array begins with a cache line, so that no vector lies
/// in two.
struct Scratch {
  float *q, *k, *columns, *q_by_k, *k_by_k, *states;
  float *decays, *kept_state;  // with by_channel; `columns` are then the kept keys

  static constexpr int64_t kLine = 64;
  static int64_t floats(const Args& args) {
    const int64_t channels = args.shape.by_channel ? args.shape.key_dim : 0;
    return kLine / 4 + 3 * cpu::kDeltaChunk * args.shape.key_dim +
           2 * cpu::kDeltaChunk * cpu::kDeltaChunk + args.per_key() * args.state_size() +
           (cpu::kDeltaChunk + 1) * channels;
  }
  Scratch(const Args& args, float* memory) {
    memory += -reinterpret_cast<uintptr_t>(memory) % kLine / sizeof(float);
    const auto take = [&memory](int64_t count) { return std::exchange(memory, memory + count); };
    q = take(cpu::kDeltaChunk * args.shape.key_dim);
    k = take(cpu::kDeltaChunk * args.shape.key_dim);
    columns = take(cpu::kDeltaChunk * args.shape.key_dim);
    q_by_k = take(cpu::kDeltaChunk * cpu::kDeltaChunk);
    k_by_k = take(cpu::kDeltaChunk * cpu::kDeltaChunk);
    states = take(args.per_key() * args.state_size());
    decays = take(args.shape.by_channel ? cpu::kDeltaChunk * args.shape.key_dim : 0);
    kept_state = take(args.shape.by_channel ? args.shape.key_dim : 0);
  }
};

void prefetch(const float* row, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(row + i);
}

/// Computes the inputs that the value heads of a key head share, for tokens [first, first + count).
void prepare_chunk(const Args& args, int64_t first, int64_t count, int64_t first_head,
                   int64_t last_head, const Scratch& scratch) {
  constexpr int64_t kRows = cpu::kDeltaChunk;
  const int64_t dim = args.shape.key_dim;
  const int64_t key_head = first_head / args.per_key();
  // Rows lie a page or more apart, where no hardware prefetcher follows.
  constexpr int64_t kAhead = 4;
  for (int64_t i = 0; i < count; ++i) {
    if (const int64_t next = first + i + kAhead; next < args.qkv.rows) {
      const float* const row = f32_row(args.qkv, next) + key_head * dim;
      prefetch(row, dim);
      prefetch(row + args.keys(), dim);
    }
    prefetch(args.v(first + i, first_head), (last_head - first_head) * args.shape.value_dim);
    args.unit_rows(first + i, key_head, scratch.q + i * dim, scratch.k + i * dim);
  }
  std::fill(scratch.q + count * dim, scratch.q + kRows * dim, 0.0f);
  std::fill(scratch.k + count * dim, scratch.k + kRows * dim, 0.0f);
  if (args.shape.by_channel) return;
  for (int64_t d = 0; d < dim; ++d) {
    for (int64_t i = 0; i < kRows; ++i) scratch.columns[d * kRows + i] = scratch.k[i * dim + d];
  }
  args.vector.delta_products(scratch.q, scratch.columns, dim, count, scratch.q_by_k);
  args.vector.delta_products(scratch.k, scratch.columns, dim, count, scratch.k_by_k);
}

/// Tokens [first, first + count) of a value head. `state`: its strips.
void run_chunk(const Args& args, int64_t first, int64_t count, int64_t head, const Scratch& scratch,
               float* state) {
  const GatedDeltaShape& shape = args.shape;
  float decay[cpu::kDeltaChunk] = {}, strength[cpu::kDeltaChunk] = {};
  cpu::DeltaChunk chunk{
      scratch.q,     scratch.k,       scratch.q_by_k,      scratch.k_by_k,
      decay,         strength,        args.v(first, head), args.out_of(first, head),
      state,         args.qkv.stride, args.out.stride,     count,
      shape.key_dim, shape.value_dim};
  if (shape.by_channel) {
    for (int64_t i = 0; i < count; ++i)
      args.channel_gates(first + i, head, scratch.decays + i * shape.key_dim, strength[i]);
    args.vector.delta_channels({scratch.decays, scratch.q, scratch.k, scratch.q_by_k,
                                scratch.k_by_k, scratch.columns, scratch.kept_state, count,
                                shape.key_dim});
    chunk.rule = cpu::DeltaStep::Rule::kByChannel;
    chunk.kept_keys = scratch.columns, chunk.kept_state = scratch.kept_state;
  } else {
    for (int64_t i = 0; i < count; ++i) args.gates(first + i, head, decay[i], strength[i]);
  }
  args.vector.delta_chunk(chunk);
}

}  // namespace

int64_t chunk_scratch(const Args& args) {
  return Scratch::floats(args);
}

void run_chunks(const Args& args, const RecurrentTokens& tokens, int64_t first_head,
                int64_t last_head, float* memory) {
  const GatedDeltaShape& shape = args.shape;
  const Scratch scratch(args, memory);
  const int64_t size = args.state_size();
  for (int64_t head = first_head; head < last_head; ++head) {
    load_strips(tokens.before == nullptr ? nullptr : tokens.before + head * size, shape.key_dim,
                shape.value_dim, scratch.states + (head - first_head) * size);
  }
  for (int64_t t = tokens.first; t < tokens.last; t += cpu::kDeltaChunk) {
    const int64_t count = std::min(cpu::kDeltaChunk, tokens.last - t);
    prepare_chunk(args, t, count, first_head, last_head, scratch);
    for (int64_t head = first_head; head < last_head; ++head)
      run_chunk(args, t, count, head, scratch, scratch.states + (head - first_head) * size);
  }
  for (int64_t head = first_head; head < last_head; ++head) {
    store_strips(scratch.states + (head - first_head) * size, shape.key_dim, shape.value_dim,
                 tokens.after + head * size);
  }
}

}  // namespace moracle::gated_delta_rule
