// Activation functions between the experts' GEMMs, in f32. Both GELUs avoid cancellation for negative g: Phi(g) is
// written as erfc of -g, and (1 + tanh z) / 2 as sigmoid(2z).

// The values of Activation in moracle/layer.h.
#define SILU 0
#define GELU 1
#define GELU_TANH 2
#define RELU2 3
#define SWIGLU_OAI 4
#define SWIGLU_STEP 5
#define SILU_NO_MUL 6
#define GELU_NO_MUL 7
#define GELU_TANH_NO_MUL 8
#define RELU2_NO_MUL 9

// Clamps that propagate NaN, like those of the CPU.
float at_most(float x, float limit) { return x > limit ? limit : x; }
float within(float x, float limit) { return x > limit ? limit : (x < -limit ? -limit : x); }

float silu(float x, float sharpness) { return x / (exp(-sharpness * x) + 1.0f); }
float gelu(float x) { return x * 0.5f * erfc(-0.70710678f * x); }
float gelu_tanh(float x) {
  const float twice = 2 * 0.79788456f;  // 2 sqrt(2 / pi)
  return x / (exp(-twice * (x + 0.044715f * x * x * x)) + 1.0f);
}
float relu2(float x) { return x < 0 ? 0.0f : x * x; }

float activated(int function, float alpha, float beta, float limit, float g, float u) {
  switch (function) {
    case SILU:
      if (limit > 0) return silu(at_most(g, limit), 1.0f) * within(u, limit);
      return silu(g, 1.0f) * u;
    case GELU: return gelu(g) * u;
    case GELU_TANH: return gelu_tanh(g) * u;
    case RELU2: return relu2(g) * u;
    case SWIGLU_OAI: return silu(at_most(g, limit), alpha) * (within(u, limit) + beta);
    case SWIGLU_STEP: return at_most(silu(g, 1.0f), limit) * within(u, limit);
    case SILU_NO_MUL: return silu(u, 1.0f);
    case GELU_NO_MUL: return gelu(u);
    case GELU_TANH_NO_MUL: return gelu_tanh(u);
    case RELU2_NO_MUL: return relu2(u);
  }
  return 0;
}
