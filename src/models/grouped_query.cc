// Grouped-query attention: q, k, v of one GEMM; q and k normalised per head where the model has
// norms for them, and turned; sinks and a window where it has those.
#include <cmath>

#include "base/try.h"
#include "models/attention.h"
#include "oracle/carve.h"

namespace moracle {
namespace {

struct Rooms {
  Matrix qkv, attended;
  size_t bytes = 0;
};
Rooms carve(const GroupedQuerySpec& spec, int64_t tokens, DType dtype, std::byte* base) {
  Carver carver(base);
  Rooms rooms;
  rooms.qkv =
      carver.take_matrix(dtype, tokens, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim);
  rooms.attended = carver.take_matrix(dtype, tokens, spec.num_heads * spec.head_dim);
  rooms.bytes = carver.bytes();
  return rooms;
}

class GroupedQueryAttention : public Attention {
 public:
  struct Parts {
    GroupedQuerySpec spec;
    Buffer frequencies, q_norm, k_norm, sinks;  // the last three empty where there are none
    Linear qkv, o;
  };
  explicit GroupedQueryAttention(Parts parts) : m_(std::move(parts)) {}

  Status apply(const Matrix& x, const Matrix& out, const AttentionStep& step) override {
    const GroupedQuerySpec& spec = m_.spec;
    const Rooms rooms = carve(spec, x.rows, x.dtype, step.room);
    const int64_t q_size = spec.num_heads * spec.head_dim,
                  kv_size = spec.num_kv_heads * spec.head_dim;
    const Matrix q = columns(rooms.qkv, 0, q_size), k = columns(rooms.qkv, q_size, kv_size),
                 v = columns(rooms.qkv, q_size + kv_size, kv_size);
    MORACLE_CHECK(m_.qkv.apply(x, rooms.qkv, step.stream));
    MORACLE_CHECK(prepare(q, m_.q_norm, step));
    MORACLE_CHECK(prepare(k, m_.k_norm, step));
    AttentionShape shape{spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.head_dim,
                         1.0f / std::sqrt(static_cast<float>(spec.head_dim))};
    shape.window = spec.window;
    if (m_.sinks.bytes() > 0) shape.sinks = m_.sinks.as<float>();
    MORACLE_CHECK(step.ops.attend(q, k, v, step.spans, shape, rooms.attended, step.stream));
    return m_.o.apply(rooms.attended, out, step.stream);
  }

 private:
  Status prepare(const Matrix& heads, const Buffer& norm, const AttentionStep& step) {
    const GroupedQuerySpec& spec = m_.spec;
    if (norm.bytes() > 0) {
      MORACLE_CHECK(step.ops.rms_norm(heads, norm.as<float>(), spec.head_dim, spec.norm_epsilon,
                                      heads, step.stream));
    }
    return step.ops.rotate(heads, rotary_shape(spec.rotary, spec.head_dim),
                           m_.frequencies.as<float>(), step.positions, step.stream);
  }

  Parts m_;
};

}  // namespace

AttentionSizes attention_sizes(const GroupedQuerySpec& spec, int64_t max_num_tokens, DType dtype) {
  const int64_t kv_size = spec.num_kv_heads * spec.head_dim;
  return {kv_size, kv_size, carve(spec, max_num_tokens, dtype, nullptr).bytes};
}

Result<std::unique_ptr<Attention>> load_attention(GroupedQueryDescription&& from, Loader& loader) {
  MORACLE_TRY(Buffer frequencies, loader.upload(from.spec.rotary.frequencies));
  MORACLE_TRY(Buffer q_norm, loader.upload(from.q_norm));
  MORACLE_TRY(Buffer k_norm, loader.upload(from.k_norm));
  MORACLE_TRY(Buffer sinks, loader.upload(from.sinks));
  MORACLE_TRY(Linear qkv, loader.linear(std::move(from.qkv)));
  MORACLE_TRY(Linear o, loader.linear(std::move(from.o)));
  return std::unique_ptr<Attention>(
      std::make_unique<GroupedQueryAttention>(GroupedQueryAttention::Parts{
          std::move(from.spec), std::move(frequencies), std::move(q_norm), std::move(k_norm),
          std::move(sinks), std::move(qkv), std::move(o)}));
}

}  // namespace moracle
