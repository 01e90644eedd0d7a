// The gated delta rule on a GPU. Sequences with few tokens in a step go through their tokens one by
// one. Longer ones go through them in chunks, on tensor cores (Yang et al., "Gated Delta Networks",
// 2024, with the WY representation of "Parallelizing linear transformers with the delta rule over
// sequence length", 2024).
#pragma once

#include "kernels/cuda/elements.cuh"
#include "kernels/ops.h"

namespace moracle::cuda {

/// Numbers of one token and value head: the logarithm of its decay, and the strength of its change.
struct DeltaGates {
  float log_decay, strength;
};

struct DeltaArgs {
  Matrix qkv, ba, out;
  const float *a_log, *dt_bias;
  GatedDeltaShape shape;
  Batch batch;
  int64_t recurrent_tokens;  // sequences with at most this many tokens do not use chunks

  __device__ int64_t key_head(int64_t head) const {
    return head / (shape.num_value_heads / shape.num_key_heads);
  }
  // First columns of a value head's q, k and v.
  __device__ int64_t q_at(int64_t head) const { return key_head(head) * shape.key_dim; }
  __device__ int64_t k_at(int64_t head) const {
    return (shape.num_key_heads + key_head(head)) * shape.key_dim;
  }
  __device__ int64_t v_at(int64_t head) const {
    return 2 * shape.num_key_heads * shape.key_dim + head * shape.value_dim;
  }
  // Columns of its a and b; with by_channel, the first of a.
  __device__ int64_t b_at(int64_t head) const {
    if (shape.by_channel) return head;
    return head / shape.ba_group * 2 * shape.ba_group + head % shape.ba_group;
  }
  __device__ int64_t a_at(int64_t head) const {
    if (shape.by_channel) return shape.ba_group + head * shape.key_dim;
    return b_at(head) + shape.ba_group;
  }
  __device__ DeltaGates gates(int64_t head, float a, float b) const {
    const float x = a + dt_bias[head], softplus = x > 20 ? x : log1pf(expf(x));
    const float log_decay = -expf(a_log[head]) * softplus;
    // exp(-100) is 0 beside every other number, and sums of such logarithms stay exact and finite.
    return {log_decay < -100 ? -100 : log_decay, 1.0f / (1.0f + expf(-b))};
  }
  /// With by_channel: the decay of a channel of the head's key.
  __device__ float channel_decay(int64_t head, int64_t channel, float a) const {
    const float x = a + dt_bias[head * shape.key_dim + channel], rate = expf(a_log[head]);
    if (shape.lower_bound != 0) return expf(shape.lower_bound / (1.0f + expf(-rate * x)));
    return expf(-rate * (x > 20 ? x : log1pf(expf(x))));
  }
  /// A head's matrix in a sequence's state; null: zeros.
  __device__ float* state_before(int64_t sequence, int64_t head) const {
    return state_of(batch.states[2 * sequence], head);
  }
  __device__ float* state_after(int64_t sequence, int64_t head) const {
    return state_of(batch.states[2 * sequence + 1], head);
  }

 private:
  __device__ float* state_of(std::byte* base, int64_t head) const {
    if (base == nullptr) return nullptr;
    return reinterpret_cast<float*>(base + shape.state) + head * shape.key_dim * shape.value_dim;
  }
};

/// Added to the sums of squares of q and k.
constexpr float kDeltaEpsilon = 1e-6f;

/// Token by token, for keys of at most kMostDeltaKeys columns and any float types. A token's bits
/// do not depend on the tokens per step.
constexpr int64_t kMostDeltaKeys = 256;
Status step_delta_rule(const DeltaArgs& args, const Queue& queue, Stream stream);

/// True if the chunk kernels support these sizes and types.
bool chunks_delta_rule(const DeltaArgs& args, const Queue& queue);
/// Sequences of more than recurrent_tokens. `scratch`: gated_delta_scratch_bytes.
Status chunk_delta_rule(const DeltaArgs& args, std::byte* scratch, const Queue& queue,
                        Stream stream);

}  // namespace moracle::cuda
