// Mamba-2 on host memory: token by token, or in chunks where a sequence has many tokens in the step
// (vector_mamba2.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <utility>

#include "kernels/cpu/ops/recurrent/recurrent_tokens.h"

namespace moracle {
namespace ops_mamba2 {
namespace {

// With fewer tokens, a chunk takes longer than the tokens one by one (bench/lab/mamba2.md).
constexpr int64_t kChunkFrom = 8;
// States of a layer's sequences from which on they leave the caches before they are read again: the
// stores of one token then bypass them, which saves reading the memory that they overwrite.
constexpr int64_t kStreamedBytes = int64_t{4} << 20;
// Heads of a group that go through a chunk together. Their states fit into a core's L2 cache, and
// the products of b and c, which they share, take little time beside theirs.
constexpr int64_t kHeadsAtOnce = 8;

struct Args {
  const cpu::VectorOps& vector;
  const Matrix &xbc, &dt, &out;
  const float *a_log, *dt_bias, *d;
  const Mamba2Shape& shape;

  int64_t per_group() const { return shape.num_heads / shape.num_groups; }
  int64_t state_size() const { return shape.state_dim * shape.head_dim; }
  const float* x(int64_t token, int64_t head) const {
    return f32_row(xbc, token) + head * shape.head_dim;
  }
  const float* b(int64_t token, int64_t head) const {
    return f32_row(xbc, token) + shape.num_heads * shape.head_dim +
           head / per_group() * shape.state_dim;
  }
  const float* c(int64_t token, int64_t head) const {
    return b(token, head) + shape.num_groups * shape.state_dim;
  }
  float* out_of(int64_t token, int64_t head) const {
    return f32_row(out, token) + head * shape.head_dim;
  }
  void step(int64_t token, int64_t head, float& decay, float& step) const {
    const float x = f32_row(dt, token)[head] + dt_bias[head];
    const float softplus = x > 20 ? x : std::log1p(std::exp(x));
    step = std::clamp(softplus, shape.least_step, shape.most_step);
    decay = std::exp(-std::exp(a_log[head]) * step);
  }
};

void run_tokens(const Args& args, const RecurrentTokens& tokens, int64_t head, bool streams) {
  const int64_t size = args.state_size();
  float* const after = tokens.after + head * size;
  streams = streams && tokens.last - tokens.first == 1 && tokens.before != nullptr &&
            args.shape.head_dim % 16 == 0 && reinterpret_cast<uintptr_t>(after) % 64 == 0;
  const float* before = tokens.before == nullptr ? after : tokens.before + head * size;
  if (tokens.before == nullptr) std::memset(after, 0, static_cast<size_t>(size) * sizeof(float));
  for (int64_t t = tokens.first; t < tokens.last; ++t) {
    float decay, step;
    args.step(t, head, decay, step);
    args.vector.mamba2_step({args.b(t, head), args.c(t, head), args.x(t, head), before, after,
                             args.out_of(t, head), decay, step, args.d[head], args.shape.state_dim,
                             args.shape.head_dim, streams});
    before = after;
  }
}

// Of kHeadsAtOnce heads. Each array begins with a cache line, so that no vector lies in two.
struct Scratch {
  float *b, *c, *columns, *c_by_b, *states;

  static constexpr int64_t kLine = 64;
  static int64_t floats(const Args& args) {
    return kLine / 4 + 3 * cpu::kDeltaChunk * args.shape.state_dim +
           cpu::kDeltaChunk * cpu::kDeltaChunk + kHeadsAtOnce * args.state_size();
  }
  Scratch(const Args& args, float* memory) {
    memory += -reinterpret_cast<uintptr_t>(memory) % kLine / sizeof(float);
    const auto take = [&memory](int64_t count) { return std::exchange(memory, memory + count); };
    b = take(cpu::kDeltaChunk * args.shape.state_dim);
    c = take(cpu::kDeltaChunk * args.shape.state_dim);
    columns = take(cpu::kDeltaChunk * args.shape.state_dim);
    c_by_b = take(cpu::kDeltaChunk * cpu::kDeltaChunk);
    states = take(kHeadsAtOnce * args.state_size());
  }
};

// Computes the inputs that the heads of a group share, for tokens [first, first + count).
void prepare_chunk(const Args& args, int64_t first, int64_t count, int64_t head,
                   const Scratch& scratch) {
  constexpr int64_t kRows = cpu::kDeltaChunk;
  const int64_t dim = args.shape.state_dim;
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(args.b(first + i, head), dim, scratch.b + i * dim);
    std::copy_n(args.c(first + i, head), dim, scratch.c + i * dim);
  }
  std::fill(scratch.b + count * dim, scratch.b + kRows * dim, 0.0f);
  std::fill(scratch.c + count * dim, scratch.c + kRows * dim, 0.0f);
  for (int64_t n = 0; n < dim; ++n) {
    for (int64_t i = 0; i < kRows; ++i) scratch.columns[n * kRows + i] = scratch.b[i * dim + n];
  }
  args.vector.delta_products(scratch.c, scratch.columns, dim, count, scratch.c_by_b);
}

// Calls copy(offset in S, offset in the strips) for each run of kDeltaStrip columns.
template <class Copy>
void each_strip_row(const Mamba2Shape& shape, const Copy& copy) {
  constexpr int64_t kStrip = cpu::kDeltaStrip;
  for (int64_t at = 0; at < shape.head_dim; at += kStrip) {
    for (int64_t n = 0; n < shape.state_dim; ++n)
      copy(n * shape.head_dim + at, (at / kStrip * shape.state_dim + n) * kStrip);
  }
}

// The heads [first_head, last_head), at most kHeadsAtOnce, belong to one group.
void run_chunks(const Args& args, const RecurrentTokens& tokens, int64_t first_head,
                int64_t last_head, float* memory) {
  const Mamba2Shape& shape = args.shape;
  const Scratch scratch(args, memory);
  const int64_t size = args.state_size();
  for (int64_t head = first_head; head < last_head; ++head) {
    float* const to = scratch.states + (head - first_head) * size;
    if (tokens.before == nullptr) {
      std::fill_n(to, size, 0.0f);
      continue;
    }
    each_strip_row(shape, [&](int64_t row, int64_t strip) {
      std::copy_n(tokens.before + head * size + row, cpu::kDeltaStrip, to + strip);
    });
  }
  for (int64_t t = tokens.first; t < tokens.last; t += cpu::kDeltaChunk) {
    const int64_t count = std::min(cpu::kDeltaChunk, tokens.last - t);
    prepare_chunk(args, t, count, first_head, scratch);
    for (int64_t head = first_head; head < last_head; ++head) {
      float decay[cpu::kDeltaChunk] = {}, step[cpu::kDeltaChunk] = {};
      for (int64_t i = 0; i < count; ++i) args.step(t + i, head, decay[i], step[i]);
      args.vector.mamba2_chunk({scratch.b, scratch.c, scratch.c_by_b, decay, step, args.x(t, head),
                                args.out_of(t, head), scratch.states + (head - first_head) * size,
                                args.d[head], args.xbc.stride, args.out.stride, count,
                                shape.state_dim, shape.head_dim});
    }
  }
  for (int64_t head = first_head; head < last_head; ++head) {
    const float* const from = scratch.states + (head - first_head) * size;
    each_strip_row(shape, [&](int64_t row, int64_t strip) {
      std::copy_n(from + strip, cpu::kDeltaStrip, tokens.after + head * size + row);
    });
  }
}

// True if a sequence of `tokens` tokens runs in chunks. Never with batch_invariant: a token's sums
// would depend on the tokens of its step.
bool takes_chunks(const Mamba2Shape& shape, int64_t tokens) {
  return !shape.batch_invariant && tokens >= kChunkFrom && shape.state_dim % 8 == 0 &&
         shape.head_dim % cpu::kDeltaStrip == 0;
}

}  // namespace
}  // namespace ops_mamba2

Status CpuOps::mamba2(const Matrix& xbc, const Matrix& dt, const float* a_log, const float* dt_bias,
                      const float* d, const Mamba2Shape& shape, const Batch& batch,
                      const Matrix& out, Stream) {
  namespace own = ops_mamba2;
  const own::Args args{vector_, xbc, dt, out, a_log, dt_bias, d, shape};
  const int64_t heads = shape.num_heads, all = batch.num_sequences * heads;
  const bool chunks = own::takes_chunks(shape, batch.most_tokens);
  const bool streams = all * args.state_size() * 4 >= own::kStreamedBytes;
  std::unique_lock lock(attending_.mutex, std::defer_lock);  // chunks need scratch
  if (chunks) lock.lock();
  pool_.run([&](int thread) {
    const auto [begin, end] = pool_.range_of(all, thread);
    for (int64_t i = begin; i < end;) {
      const RecurrentTokens tokens = recurrent_tokens(batch, i / heads, shape.state);
      const int64_t head = i % heads;
      int64_t last = head + 1;
      if (chunks && own::takes_chunks(shape, tokens.last - tokens.first)) {
        const int64_t of_group = head / args.per_group() * args.per_group() + args.per_group();
        last = std::min({of_group, head + end - i, head + own::kHeadsAtOnce});
        own::run_chunks(args, tokens, head, last,
                        attend_scratch(thread, own::Scratch::floats(args)));
      } else if (tokens.first < tokens.last) {
        own::run_tokens(args, tokens, head, streams);
      }
      i += last - head;
    }
  });
  return {};
}

}  // namespace moracle
