// The inputs of the gated delta rule on host memory, by token and head.
#pragma once

#include "kernels/cpu/ops/recurrent/recurrent_tokens.h"

namespace moracle::gated_delta_rule {

struct Args {
  const cpu::VectorOps& vector;
  const Matrix &qkv, &ba, &out;
  const float *a_log, *dt_bias;
  const GatedDeltaShape& shape;

  int64_t keys() const { return shape.num_key_heads * shape.key_dim; }
  /// Value heads of a key head.
  int64_t per_key() const { return shape.num_value_heads / shape.num_key_heads; }
  int64_t state_size() const { return shape.key_dim * shape.value_dim; }
  const float* v(int64_t token, int64_t head) const {
    return f32_row(qkv, token) + 2 * keys() + head * shape.value_dim;
  }
  float* out_of(int64_t token, int64_t head) const {
    return f32_row(out, token) + head * shape.value_dim;
  }
  /// q / |q| / √key_dim and k / |k|
  void unit_rows(int64_t token, int64_t key_head, float* q, float* k) const;
  void gates(int64_t token, int64_t head, float& decay, float& strength) const;
  /// With by_channel: the decays of the head's channels, and the strength.
  void channel_gates(int64_t token, int64_t head, float* decays, float& strength) const;
};

/// Floats of scratch that run_chunks needs.
int64_t chunk_scratch(const Args& args);
/// The tokens of one sequence in chunks of cpu::kDeltaChunk, which count from the first token. The
/// value heads [first_head, last_head) share a key head. key_dim is a multiple of 8, with
/// by_channel of 16, value_dim of cpu::kDeltaStrip.
void run_chunks(const Args& args, const RecurrentTokens& tokens, int64_t first_head,
                int64_t last_head, float* memory);

}  // namespace moracle::gated_delta_rule
