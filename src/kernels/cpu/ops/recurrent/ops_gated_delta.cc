// The gated delta rule on host memory: token by token, or in chunks where a sequence has many
// tokens in the step.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "base/text.h"
#include "kernels/cpu/ops/recurrent/gated_delta_rule.h"

namespace moracle {
namespace gated_delta_rule {
namespace {

constexpr int64_t kMostKeyDim = 1024;
// With fewer tokens, a chunk takes longer than the tokens one by one (bench/lab/gated_delta.md).
constexpr int64_t kChunkFrom = 8;

// y = x · factor / |x|
void normalize(const cpu::VectorOps& vector, const float* x, int64_t count, float factor,
               float* y) {
  const auto squares = static_cast<float>(vector.sum_of_squares(x, count));
  vector.scale(x, factor / std::sqrt(squares + 1e-6f), count, y);
}

float decay_of(float a, float a_log, float dt_bias) {
  const double x = static_cast<double>(a) + dt_bias;
  const double softplus = x > 20 ? x : std::log1p(std::exp(x));
  return static_cast<float>(std::exp(-std::exp(static_cast<double>(a_log)) * softplus));
}

void run_tokens(const Args& args, const RecurrentTokens& tokens, int64_t head) {
  const GatedDeltaShape& shape = args.shape;
  const int64_t size = args.state_size();
  float* const after = tokens.after + head * size;
  const float* before = tokens.before == nullptr ? after : tokens.before + head * size;
  if (tokens.before == nullptr) std::memset(after, 0, static_cast<size_t>(size) * sizeof(float));
  using Rule = cpu::DeltaStep::Rule;
  float q[kMostKeyDim], k[kMostKeyDim], decays[kMostKeyDim];
  for (int64_t t = tokens.first; t < tokens.last; ++t) {
    float decay = 1, strength;
    args.unit_rows(t, head / args.per_key(), q, k);
    if (shape.by_channel)
      args.channel_gates(t, head, decays, strength);
    else
      args.gates(t, head, decay, strength);
    args.vector.delta_step({q, k, args.v(t, head), before, after, args.out_of(t, head), decay,
                            strength, shape.key_dim, shape.value_dim,
                            shape.by_channel ? Rule::kByChannel : Rule::kDelta, decays});
    before = after;
  }
}

/// True if a sequence of `tokens` tokens runs in chunks. Never with batch_invariant: a token's sums
/// would depend on the tokens of its step.
bool takes_chunks(const GatedDeltaShape& shape, int64_t tokens) {
  return !shape.batch_invariant && tokens >= kChunkFrom &&
         shape.key_dim % (shape.by_channel ? 16 : 8) == 0 &&
         shape.value_dim % cpu::kDeltaStrip == 0;
}

}  // namespace

void Args::unit_rows(int64_t token, int64_t key_head, float* q, float* k) const {
  const float* const row = f32_row(qkv, token) + key_head * shape.key_dim;
  normalize(vector, row, shape.key_dim, 1.0f / std::sqrt(static_cast<float>(shape.key_dim)), q);
  normalize(vector, row + keys(), shape.key_dim, 1, k);
}

void Args::gates(int64_t token, int64_t head, float& decay, float& strength) const {
  const float* const row = f32_row(ba, token);
  const int64_t at = head / shape.ba_group * 2 * shape.ba_group + head % shape.ba_group;
  decay = decay_of(row[at + shape.ba_group], a_log[head], dt_bias[head]);
  strength = 1.0f / (1.0f + std::exp(-row[at]));
}

void Args::channel_gates(int64_t token, int64_t head, float* decays, float& strength) const {
  const float* const row = f32_row(ba, token);
  const int64_t first = head * shape.key_dim;
  vector.delta_decays({row + shape.ba_group + first, dt_bias + first, std::exp(a_log[head]),
                       shape.lower_bound, shape.key_dim, decays});
  strength = 1.0f / (1.0f + std::exp(-row[head]));
}

}  // namespace gated_delta_rule

Status CpuOps::gated_delta(const Matrix& qkv, const Matrix& ba, const float* a_log,
                           const float* dt_bias, const GatedDeltaShape& shape, const Batch& batch,
                           const Matrix& out, std::byte*, Stream) {
  namespace rule = gated_delta_rule;
  if (shape.key_dim > rule::kMostKeyDim) {
    return Error{ErrorKind::kUnsupported, "", "gated DeltaNet",
                 str("keys of at most ", rule::kMostKeyDim, " columns"),
                 str("they have ", shape.key_dim)};
  }
  const rule::Args args{vector_, qkv, ba, out, a_log, dt_bias, shape};
  const int64_t heads = shape.num_value_heads, all = batch.num_sequences * heads;
  const bool chunks = rule::takes_chunks(shape, batch.most_tokens);
  std::unique_lock lock(attending_.mutex, std::defer_lock);  // chunks need scratch
  if (chunks) lock.lock();
  pool_.run([&](int thread) {
    const auto [begin, end] = pool_.range_of(all, thread);
    for (int64_t i = begin; i < end;) {
      const RecurrentTokens tokens = recurrent_tokens(batch, i / heads, shape.state);
      const int64_t head = i % heads;
      int64_t last = head + 1;
      if (chunks && rule::takes_chunks(shape, tokens.last - tokens.first)) {
        last = std::min(head / args.per_key() * args.per_key() + args.per_key(), head + end - i);
        rule::run_chunks(args, tokens, head, last,
                         attend_scratch(thread, rule::chunk_scratch(args)));
      } else if (tokens.first < tokens.last) {
        rule::run_tokens(args, tokens, head);
      }
      i += last - head;
    }
  });
  return {};
}

}  // namespace moracle
