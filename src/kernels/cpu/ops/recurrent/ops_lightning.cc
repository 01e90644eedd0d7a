// Lightning attention on host memory: token by token, or in chunks where a sequence has many tokens
// in the step. Both run the loops of the gated delta rule, without its delta.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/text.h"
#include "kernels/cpu/ops/recurrent/recurrent_tokens.h"
#include "kernels/cpu/ops/recurrent/state_strips.h"

namespace moracle {
namespace ops_lightning {
namespace {

using Rule = cpu::DeltaStep::Rule;
constexpr int64_t kMostDim = 1024;
// As for the gated delta rule.
constexpr int64_t kChunkFrom = 8;

struct Args {
  const cpu::VectorOps& vector;
  const Matrix &qkv, &out;
  const float* decays;
  const LightningShape& shape;

  int64_t state_size() const { return shape.head_dim * shape.head_dim; }
  float* out_of(int64_t token, int64_t head) const {
    return f32_row(out, token) + head * shape.head_dim;
  }
  /// SiLU of section 0, 1 or 2 of a head: q, k or v.
  void activated(int64_t token, int64_t head, int64_t section, float* to) const {
    const float* const row = f32_row(qkv, token) + (3 * head + section) * shape.head_dim;
    vector.silu_of(row, shape.head_dim, to);
  }
};

void run_tokens(const Args& args, const RecurrentTokens& tokens, int64_t head) {
  const int64_t dim = args.shape.head_dim, size = args.state_size();
  float* const after = tokens.after + head * size;
  const float* before = tokens.before == nullptr ? after : tokens.before + head * size;
  if (tokens.before == nullptr) std::memset(after, 0, static_cast<size_t>(size) * sizeof(float));
  float rows[3][kMostDim];
  for (int64_t t = tokens.first; t < tokens.last; ++t) {
    for (int64_t section = 0; section < 3; ++section)
      args.activated(t, head, section, rows[section]);
    args.vector.delta_step({rows[0], rows[1], rows[2], before, after, args.out_of(t, head),
                            args.decays[head], 1, dim, dim, Rule::kSum});
    before = after;
  }
}

bool takes_chunks(const LightningShape& shape, int64_t tokens) {
  return !shape.batch_invariant && tokens >= kChunkFrom && shape.head_dim % cpu::kDeltaStrip == 0;
}

/// Each array begins with a cache line.
struct Scratch {
  float *rows[3], *columns, *q_by_k, *state;

  static constexpr int64_t kLine = 64;
  static int64_t floats(const Args& args) {
    return kLine / 4 + 4 * cpu::kDeltaChunk * args.shape.head_dim +
           cpu::kDeltaChunk * cpu::kDeltaChunk + args.state_size();
  }
  Scratch(const Args& args, float* memory) {
    memory += -reinterpret_cast<uintptr_t>(memory) % kLine / sizeof(float);
    const auto take = [&memory](int64_t count) { return std::exchange(memory, memory + count); };
    for (float*& section : rows) section = take(cpu::kDeltaChunk * args.shape.head_dim);
    columns = take(cpu::kDeltaChunk * args.shape.head_dim);
    q_by_k = take(cpu::kDeltaChunk * cpu::kDeltaChunk);
    state = take(args.state_size());
  }
};

void run_chunks(const Args& args, const RecurrentTokens& tokens, int64_t head, float* memory) {
  constexpr int64_t kRows = cpu::kDeltaChunk;
  const Scratch scratch(args, memory);
  const int64_t dim = args.shape.head_dim, size = args.state_size();
  float decays[kRows];
  std::fill_n(decays, kRows, args.decays[head]);
  load_strips(tokens.before == nullptr ? nullptr : tokens.before + head * size, dim, dim,
              scratch.state);
  for (int64_t t = tokens.first; t < tokens.last; t += kRows) {
    const int64_t count = std::min(kRows, tokens.last - t);
    for (int64_t section = 0; section < 3; ++section) {
      float* const rows = scratch.rows[section];
      for (int64_t i = 0; i < count; ++i) args.activated(t + i, head, section, rows + i * dim);
      std::fill(rows + count * dim, rows + kRows * dim, 0.0f);
    }
    const float *const q = scratch.rows[0], *const k = scratch.rows[1];
    for (int64_t d = 0; d < dim; ++d) {
      for (int64_t i = 0; i < kRows; ++i) scratch.columns[d * kRows + i] = k[i * dim + d];
    }
    args.vector.delta_products(q, scratch.columns, dim, count, scratch.q_by_k);
    cpu::DeltaChunk chunk{q,
                          k,
                          scratch.q_by_k,
                          nullptr,
                          decays,
                          nullptr,
                          scratch.rows[2],
                          args.out_of(t, head),
                          scratch.state,
                          dim,
                          args.out.stride,
                          count,
                          dim,
                          dim};
    chunk.rule = Rule::kSum;
    args.vector.delta_chunk(chunk);
  }
  store_strips(scratch.state, dim, dim, tokens.after + head * size);
}

}  // namespace
}  // namespace ops_lightning

Status CpuOps::lightning(const Matrix& qkv, const float* decays, const LightningShape& shape,
                         const Batch& batch, const Matrix& out, Stream) {
  using namespace ops_lightning;
  if (shape.head_dim > kMostDim) {
    return Error{ErrorKind::kUnsupported, "", "lightning attention",
                 str("heads of at most ", kMostDim, " columns"), str("they have ", shape.head_dim)};
  }
  const Args args{vector_, qkv, out, decays, shape};
  const int64_t heads = shape.num_heads;
  const bool chunks = takes_chunks(shape, batch.most_tokens);
  std::unique_lock lock(attending_.mutex, std::defer_lock);  // chunks need scratch
  if (chunks) lock.lock();
  pool_.run([&](int thread) {
    const auto [begin, end] = pool_.range_of(batch.num_sequences * heads, thread);
    for (int64_t i = begin; i < end; ++i) {
      const RecurrentTokens tokens = recurrent_tokens(batch, i / heads, shape.state);
      const int64_t head = i % heads;
      if (takes_chunks(shape, tokens.last - tokens.first))
        run_chunks(args, tokens, head, attend_scratch(thread, Scratch::floats(args)));
      else if (tokens.first < tokens.last)
        run_tokens(args, tokens, head);
    }
  });
  return {};
}

}  // namespace moracle
