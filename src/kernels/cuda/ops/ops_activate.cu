// Activation functions between the experts' GEMMs, in f32. Both GELUs avoid cancellation for
// negative g: Φ(g) is written as erfc of -g, and (1 + tanh z) / 2 as σ(2z).
#include "kernels/check_ops.h"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace moracle {
namespace cuda {
namespace {

// Clamps that propagate NaN, like those of the CPU.
__device__ float at_most(float x, float limit) {
  return x > limit ? limit : x;
}
__device__ float within(float x, float limit) {
  return x > limit ? limit : (x < -limit ? -limit : x);
}

__device__ float silu(float x, float sharpness) {
  return x / (expf(-sharpness * x) + 1.0f);
}
__device__ float gelu(float x) {
  return x * 0.5f * erfcf(-0.70710678f * x);
}
__device__ float gelu_tanh(float x) {
  constexpr float kTwice = 2 * 0.79788456f;  // 2 √(2/π)
  return x / (expf(-kTwice * (x + 0.044715f * x * x * x)) + 1.0f);
}
__device__ float relu2(float x) {
  return x < 0 ? 0.0f : x * x;
}

__device__ float activated(const ActivationSpec& a, float g, float u) {
  switch (a.function) {
    case Activation::kSilu:
      if (a.limit > 0) return silu(at_most(g, a.limit), 1) * within(u, a.limit);
      return silu(g, 1) * u;
    case Activation::kGelu:
      return gelu(g) * u;
    case Activation::kGeluTanh:
      return gelu_tanh(g) * u;
    case Activation::kRelu2:
      return relu2(g) * u;
    case Activation::kSwigluOai:
      return silu(at_most(g, a.limit), a.alpha) * (within(u, a.limit) + a.beta);
    case Activation::kSwigluStep:
      return at_most(silu(g, 1), a.limit) * within(u, a.limit);
    case Activation::kSiluNoMul:
      return silu(u, 1);
    case Activation::kGeluNoMul:
      return gelu(u);
    case Activation::kGeluTanhNoMul:
      return gelu_tanh(u);
    case Activation::kRelu2NoMul:
      return relu2(u);
  }
  return 0;
}

struct Activate {
  ActivationSpec activation;
  int64_t size;  // columns of the result
  int64_t up;    // first column of the up projection; 0 without a gate
  Matrix gate_up, out;
  __device__ void operator()(int64_t r, int64_t c) const {
    const float value =
        c < size ? activated(activation, load(gate_up, r, c), load(gate_up, r, up + c)) : 0.0f;
    store(out, r, c, value);
  }
};

}  // namespace
}  // namespace cuda

Status CudaOps::activate(const ActivationSpec& activation, int64_t intermediate_size,
                         const Matrix& gate_up, const Matrix& out, Stream stream) {
  MORACLE_CHECK(check_activation(activation));
  MORACLE_CHECK(cuda::check_floats({&gate_up, &out}));
  const int64_t up = is_gated(activation.function) ? intermediate_size : 0;
  return cuda::launch_elements(queue_, stream, "activate", gate_up.rows, out.cols,
                               cuda::Activate{activation, intermediate_size, up, gate_up, out});
}

}  // namespace moracle
