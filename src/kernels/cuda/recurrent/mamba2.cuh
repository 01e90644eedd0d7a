// Mamba-2 on a GPU (Dao and Gu, "Transformers are SSMs", 2024). Sequences with few tokens in a step
// go through their tokens one by one. Longer ones go through them in chunks, on tensor cores.
#pragma once

#include "kernels/cuda/elements.cuh"
#include "kernels/ops.h"

namespace moracle::cuda {

/// Numbers of one token and head: its step size, and the logarithm of its decay.
struct Mamba2Gates {
  float step, log_decay;
};

struct Mamba2Args {
  Matrix xbc, dt, out;
  const float *a_log, *dt_bias, *d;
  Mamba2Shape shape;
  Batch batch;
  int64_t recurrent_tokens;  // sequences with at most this many tokens do not use chunks

  // First columns of a head's x, b and c.
  __device__ int64_t x_at(int64_t head) const { return head * shape.head_dim; }
  __device__ int64_t b_at(int64_t head) const {
    return shape.num_heads * shape.head_dim +
           head / (shape.num_heads / shape.num_groups) * shape.state_dim;
  }
  __device__ int64_t c_at(int64_t head) const {
    return b_at(head) + shape.num_groups * shape.state_dim;
  }
  __device__ Mamba2Gates gates(int64_t head, float raw) const {
    const float x = raw + dt_bias[head], softplus = x > 20 ? x : log1pf(expf(x));
    const float step = fminf(fmaxf(softplus, shape.least_step), shape.most_step);
    const float log_decay = -expf(a_log[head]) * step;
    // exp(-100) is 0 beside every other number, and sums of such logarithms stay exact and finite.
    return {step, log_decay < -100 ? -100 : log_decay};
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
    return reinterpret_cast<float*>(base + shape.state) + head * shape.state_dim * shape.head_dim;
  }
};

/// Token by token, for states of at most kMostMambaStates rows and any float types. A token's bits
/// do not depend on the tokens per step.
constexpr int64_t kMostMambaStates = 256;
Status step_mamba2(const Mamba2Args& args, const Queue& queue, Stream stream);

/// True if the chunk kernel supports these sizes and types.
bool chunks_mamba2(const Mamba2Args& args, const Queue& queue);
/// Sequences of more than recurrent_tokens.
Status chunk_mamba2(const Mamba2Args& args, const Queue& queue, Stream stream);

}  // namespace moracle::cuda
