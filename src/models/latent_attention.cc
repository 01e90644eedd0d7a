// Multi-head latent attention (DeepSeek-V2, 2024), keys and values decompressed into the cache:
//
//   q = W_q x, or W_qb norm(W_qa x)          per head: nope ‖ rope
//   c ‖ k_rope = W_kva x                     k_rope once for all heads
//   k_nope ‖ v = W_kvb norm(c)               per head
//   k = k_nope ‖ turned k_rope
//
// W_kvb is not absorbed into q and the output: its input is quantized like every other layer's, and
// absorbed there would be none.
#include "base/try.h"
#include "models/attention.h"
#include "oracle/carve.h"

namespace moracle {
namespace {

struct Rooms {
  Matrix q_latent, q, kv_a, kv_latent, kv, k, v, attended;
  size_t bytes = 0;
};
Rooms carve(const LatentSpec& spec, int64_t tokens, DType dtype, std::byte* base) {
  Carver carver(base);
  auto take = [&](int64_t cols) { return carver.take_matrix(dtype, tokens, cols); };
  Rooms rooms;
  rooms.q_latent = take(spec.q_rank);
  rooms.q = take(spec.num_heads * spec.head_dim());
  rooms.kv_a = take(spec.kv_rank + spec.rope_dim);
  rooms.kv_latent = take(spec.kv_rank);
  rooms.kv = take(spec.num_heads * (spec.nope_dim + spec.value_dim));
  rooms.k = take(spec.num_heads * spec.head_dim());
  rooms.v = take(spec.num_heads * spec.value_dim);
  rooms.attended = take(spec.num_heads * spec.value_dim);
  rooms.bytes = carver.bytes();
  return rooms;
}

class LatentAttention : public Attention {
 public:
  struct Parts {
    LatentSpec spec;
    Buffer frequencies, q_norm, kv_norm;
    std::optional<Linear> q_a;
    Linear q, kv_a, kv_b, o;
  };
  explicit LatentAttention(Parts parts) : m_(std::move(parts)) {}

  Status apply(const Matrix& x, const Matrix& out, const AttentionStep& step) override {
    const LatentSpec& spec = m_.spec;
    const Rooms rooms = carve(spec, x.rows, x.dtype, step.room);
    MORACLE_CHECK(queries(x, rooms, step));
    MORACLE_CHECK(keys_and_values(x, rooms, step));
    const AttentionShape shape{spec.num_heads, spec.num_heads, spec.head_dim(), spec.value_dim,
                               spec.scale};
    MORACLE_CHECK(
        step.ops.attend(rooms.q, rooms.k, rooms.v, step.spans, shape, rooms.attended, step.stream));
    return m_.o.apply(rooms.attended, out, step.stream);
  }

 private:
  Status queries(const Matrix& x, const Rooms& rooms, const AttentionStep& step) {
    const LatentSpec& spec = m_.spec;
    if (m_.q_a) {
      MORACLE_CHECK(m_.q_a->apply(x, rooms.q_latent, step.stream));
      MORACLE_CHECK(step.ops.rms_norm(rooms.q_latent, m_.q_norm.as<float>(), spec.q_rank,
                                      spec.norm_epsilon, rooms.q_latent, step.stream));
    }
    MORACLE_CHECK(m_.q.apply(m_.q_a ? rooms.q_latent : x, rooms.q, step.stream));
    return step.ops.rotate(rooms.q, rotary_shape(spec.rotary, spec.head_dim(), spec.nope_dim),
                           m_.frequencies.as<float>(), step.positions, step.stream);
  }

  Status keys_and_values(const Matrix& x, const Rooms& rooms, const AttentionStep& step) {
    const LatentSpec& spec = m_.spec;
    const Matrix latent = columns(rooms.kv_a, 0, spec.kv_rank),
                 rope = columns(rooms.kv_a, spec.kv_rank, spec.rope_dim);
    MORACLE_CHECK(m_.kv_a.apply(x, rooms.kv_a, step.stream));
    MORACLE_CHECK(step.ops.rms_norm(latent, m_.kv_norm.as<float>(), spec.kv_rank, spec.norm_epsilon,
                                    rooms.kv_latent, step.stream));
    MORACLE_CHECK(step.ops.rotate(rope, rotary_shape(spec.rotary, spec.rope_dim),
                                  m_.frequencies.as<float>(), step.positions, step.stream));
    MORACLE_CHECK(m_.kv_b.apply(rooms.kv_latent, rooms.kv, step.stream));
    const int64_t kv_dim = spec.nope_dim + spec.value_dim;
    auto copy = [&](const Matrix& from, int64_t from_dim, const Matrix& to, int64_t to_dim,
                    int64_t count) {
      return step.ops.copy_heads(from, from_dim, to, to_dim, spec.num_heads, count, step.stream);
    };
    MORACLE_CHECK(copy(rooms.kv, kv_dim, rooms.k, spec.head_dim(), spec.nope_dim));
    MORACLE_CHECK(copy(rope, 0, columns(rooms.k, spec.nope_dim, rooms.k.cols - spec.nope_dim),
                       spec.head_dim(), spec.rope_dim));
    return copy(columns(rooms.kv, spec.nope_dim, rooms.kv.cols - spec.nope_dim), kv_dim, rooms.v,
                spec.value_dim, spec.value_dim);
  }

  Parts m_;
};

}  // namespace

AttentionSizes attention_sizes(const LatentSpec& spec, int64_t max_num_tokens, DType dtype) {
  return {spec.num_heads * spec.head_dim(), spec.num_heads * spec.value_dim,
          carve(spec, max_num_tokens, dtype, nullptr).bytes};
}

Result<std::unique_ptr<Attention>> load_attention(LatentDescription&& from, Loader& loader) {
  MORACLE_TRY(Buffer frequencies, loader.upload(from.spec.rotary.frequencies));
  MORACLE_TRY(Buffer q_norm, loader.upload(from.q_norm));
  MORACLE_TRY(Buffer kv_norm, loader.upload(from.kv_norm));
  std::optional<Linear> q_a;
  if (from.q_a) {
    MORACLE_TRY(q_a, loader.linear(std::move(*from.q_a)));
  }
  MORACLE_TRY(Linear q, loader.linear(std::move(from.q)));
  MORACLE_TRY(Linear kv_a, loader.linear(std::move(from.kv_a)));
  MORACLE_TRY(Linear kv_b, loader.linear(std::move(from.kv_b)));
  MORACLE_TRY(Linear o, loader.linear(std::move(from.o)));
  return std::unique_ptr<Attention>(std::make_unique<LatentAttention>(LatentAttention::Parts{
      std::move(from.spec), std::move(frequencies), std::move(q_norm), std::move(kv_norm),
      std::move(q_a), std::move(q), std::move(kv_a), std::move(kv_b), std::move(o)}));
}

}  // namespace moracle
