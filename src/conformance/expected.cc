// The expected output with a running error bound. Every quantity is a value in double, with the
// largest difference that an f32 implementation of the same scheme may have from it.
//
//   weights and activations decoded in f32, products summed in f32, any order
//                                         |error| <= (K + 8) u Σ|x w|,     u = 2^-24
//   with minimums                         |w| is |code · scale| + |zero point · scale + minimum|,
//                                         since kernels may sum both apart
//   exact integer sums, scaled in f32     |error| <= 4 u |y|
//   floats multiplied with fewer bits     plus the bits that each float loses
//   stored in fewer bits between stages   plus the bits that the stored value loses
//   rounding to codes                     the codes at both ends of the value's and the scale's
//                                         intervals
//   an adapter's B (A x)                  as sums of products; the error of A x enters the second
#include <algorithm>
#include <cmath>

#include "conformance/conformance.h"
#include "oracle/kernel_plan.h"
#include "quant/activation.h"
#include "quant/codec.h"

namespace moracle::conformance {
namespace {

constexpr double kU = 0x1p-24;

struct Vector {
  std::vector<double> value, error;
  std::vector<double> rounding;  // error in products with codes alone, beside `error`
  explicit Vector(size_t size) : value(size), error(size), rounding(size) {}
};

// Quantizes one group under the activation key: each value becomes code times scale. A value within
// its error of a tie may get another code. So may values whose scale jumps because the largest
// magnitude is within its error of a power-of-two threshold. The error is the largest distance of
// any such code from the result of exact values.
void quantize_group(const QuantKey& key, Vector& x, int64_t begin, int64_t end) {
  double largest = 0, largest_error = 0;
  for (int64_t i = begin; i < end; ++i) {
    largest = std::max(largest, std::fabs(x.value[i]));
    largest_error = std::max(largest_error, x.error[i]);
  }
  largest_error += 2 * kU * largest;
  const float scale = scale_for(key, static_cast<float>(largest));
  const float scales[] = {
      scale, scale_for(key, static_cast<float>(std::max(0.0, largest - largest_error))),
      scale_for(key, static_cast<float>(largest + largest_error))};
  for (int64_t i = begin; i < end; ++i) {
    const double exact = x.value[i], doubt = x.error[i] + 4 * kU * std::fabs(exact);
    auto rounded = [&](double value, float s) {
      return static_cast<double>(decode(key, encode(key, static_cast<float>(value), s))) * s;
    };
    x.value[i] = rounded(exact, scale);
    double farthest = 0;
    for (float s : scales) {
      for (double value : {exact - doubt, exact, exact + doubt}) {
        farthest = std::max(farthest, std::fabs(rounded(value, s) - x.value[i]));
      }
    }
    x.error[i] = farthest;
  }
}

// Same for values whose error spans several codes: any scale between both ends is possible. The
// computed and the exact code each lie within half a step of their value.
void quantize_coarse_group(const QuantKey& key, Vector& x, int64_t begin, int64_t end) {
  const Vector exact = x;
  double largest = 0, largest_error = 0;
  for (int64_t i = begin; i < end; ++i) {
    largest = std::max(largest, std::fabs(x.value[i]));
    largest_error = std::max(largest_error, x.error[i]);
  }
  const float most = scale_for(key, static_cast<float>(largest + largest_error + 2 * kU * largest));
  quantize_group(key, x, begin, end);
  for (int64_t i = begin; i < end; ++i) {
    const double doubt = exact.error[i] + 4 * kU * std::fabs(exact.value[i]);
    // fp8 has three bits of mantissa, and 2^-9 is its smallest number.
    const double half_step = key.dtype == DType::kI8
                                 ? 0.5 * most
                                 : std::max(std::ldexp(std::fabs(exact.value[i]) + doubt, -4),
                                            std::ldexp(static_cast<double>(most), -10));
    x.error[i] = doubt + half_step + std::fabs(x.value[i] - exact.value[i]);
  }
}

void quantize(const Scheme& scheme, Vector& x, float input_scale, int stored_bits) {
  const QuantKey& key = *scheme.activation;
  const auto cols = static_cast<int64_t>(x.value.size());
  if (!key.dynamic) {
    for (int64_t i = 0; i < cols; ++i) {
      auto rounded = [&](double value) {
        return static_cast<double>(
                   decode(key, encode(key, static_cast<float>(value), input_scale))) *
               input_scale;
      };
      const double exact = x.value[i], doubt = x.error[i] + 4 * kU * std::fabs(exact);
      x.value[i] = rounded(exact);
      x.error[i] = std::max(std::fabs(rounded(exact - doubt) - x.value[i]),
                            std::fabs(rounded(exact + doubt) - x.value[i]));
    }
    return;
  }
  for (int64_t begin = 0, group = group_cols(key, cols); begin < cols; begin += group) {
    const int64_t end = std::min(cols, begin + group);
    const bool exact = *std::max_element(&x.error[begin], &x.error[begin] + (end - begin)) == 0;
    if (stored_bits < 24 && !exact)
      quantize_coarse_group(key, x, begin, end);
    else
      quantize_group(key, x, begin, end);
  }
}

// Adds to `error` the error of rounding each value to `bits` significant bits. With `group`, values
// of so many columns share the exponent of the largest (block floating point).
void cut(const Vector& x, int bits, int64_t group, std::vector<double>& error) {
  if (bits >= 24) return;  // already counted with the arithmetic
  const auto count = static_cast<int64_t>(x.value.size());
  for (int64_t begin = 0, step = std::max<int64_t>(group, 1); begin < count; begin += step) {
    const int64_t end = std::min(count, begin + step);
    double largest = 0;
    for (int64_t i = begin; i < end; ++i)
      largest = std::max(largest, std::fabs(x.value[i]) + x.error[i]);
    for (int64_t i = begin; i < end; ++i) error[i] += std::ldexp(largest, -bits);
  }
}
void cut(Vector& x, int bits) {
  cut(x, bits, 0, x.error);
}

// A matrix and its weights as numbers, [n, k].
struct Decoded {
  CanonicalMatrix matrix;
  std::vector<double> values;
  std::vector<double> weight_error;  // of each weight of a row; empty: none
  // With minimums, [n, k]: code · scale, and its magnitude plus that of the subtracted number.
  std::vector<double> products, magnitudes;

  explicit Decoded(CanonicalMatrix from, bool one_exponent = false)
      : matrix(std::move(from)), values(matrix.n * matrix.k) {
    for (int64_t n = 0; n < matrix.n; ++n) {
      dequantize_row(matrix, n, &values[n * matrix.k]);
      if (!matrix.minimums.empty()) split_row(n);
      if (!one_exponent) continue;
      const auto scales = matrix.scales.begin() + n / matrix.key.group.rows * matrix.scale_cols();
      weight_error.push_back(
          std::ldexp(*std::max_element(scales, scales + matrix.scale_cols()), -10));
    }
  }

  void split_row(int64_t n) {
    for (int64_t k = 0; k < matrix.k; ++k) {
      const int64_t group =
          matrix.group_index.empty() ? k / matrix.group_cols() : matrix.group_index[k];
      const int64_t at = n / matrix.key.group.rows * matrix.scale_cols() + group;
      const double zero = matrix.zero_points.empty() ? 0 : matrix.zero_points[at];
      const double subtracted = zero * matrix.scales[at] + matrix.minimums[at];
      products.push_back(values[n * matrix.k + k] + subtracted);
      magnitudes.push_back(std::fabs(products.back()) + std::fabs(subtracted));
    }
  }
};

Vector multiply(const Decoded& decoded, const Vector& x, bool integers) {
  const CanonicalMatrix& w = decoded.matrix;
  // Groups and minimums are added up in f32.
  integers = integers && w.scale_cols() == 1 && w.minimums.empty();
  const auto& products = w.minimums.empty() ? decoded.values : decoded.products;
  const auto& magnitudes = w.minimums.empty() ? decoded.values : decoded.magnitudes;
  Vector y(w.n);
  for (int64_t n = 0; n < w.n; ++n) {
    const double* const row = &decoded.values[n * w.k];
    double sum = 0, magnitude = 0, carried = 0;
    for (int64_t k = 0; k < w.k; ++k) {
      sum += x.value[k] * row[k];
      magnitude += std::fabs(x.value[k] * magnitudes[n * w.k + k]);
      carried += x.error[k] * std::fabs(row[k]) + x.rounding[k] * std::fabs(products[n * w.k + k]);
      if (!decoded.weight_error.empty())
        carried += decoded.weight_error[n] * (std::fabs(x.value[k]) + x.error[k] + x.rounding[k]);
    }
    if (!w.bias.empty()) sum += w.bias[n];
    y.value[n] = sum;
    const double own =
        integers ? 4 * kU * std::fabs(sum) : (static_cast<double>(w.k) + 8) * kU * magnitude;
    y.error[n] =
        carried + own + 2 * kU * (w.bias.empty() ? 0 : std::fabs(w.bias[n]) + std::fabs(sum));
  }
  return y;
}

// Value of the gate function, its largest slope, and the size of the argument of the exponential.
// The relative error of the exponential grows with that size.
struct Gate {
  double value, slope, argument;
};
Gate gate_of(const ActivationSpec& spec, double g, double g_error) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  switch (spec.function) {
    case Activation::kGelu:
    case Activation::kGeluNoMul:
      return {g * 0.5 * std::erfc(-g / std::sqrt(2.0)), 1.13, g * g};
    case Activation::kGeluTanh:
    case Activation::kGeluTanhNoMul: {
      const double z = std::sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g);
      return {g * sigmoid(2 * z), 1.13, 4 * std::fabs(z)};  // (1 + tanh z) / 2 = σ(2z)
    }
    case Activation::kRelu2:
    case Activation::kRelu2NoMul:
      return {g > 0 ? g * g : 0, 2 * (std::fabs(g) + g_error), 0};
    case Activation::kSwigluOai:
      return {g * sigmoid(spec.alpha * g), 1.1, std::fabs(spec.alpha * g)};
    default:
      return {g * sigmoid(g), 1.1, std::fabs(g)};
  }
}

Vector activate(const ActivationSpec& spec, int64_t intermediate_size, const Vector& gate_up) {
  const auto size = static_cast<size_t>(intermediate_size);
  const bool gated = is_gated(spec.function), clamps = spec.limit > 0;
  const double limit = spec.limit;
  Vector h(size);
  for (size_t i = 0; i < size; ++i) {
    double g = gate_up.value[i], u = gated ? gate_up.value[size + i] : 1;
    double u_error = gated ? gate_up.error[size + i] : 0;
    const bool step = spec.function == Activation::kSwigluStep;
    // Clamping never enlarges an error.
    if (clamps && !step) g = std::min(g, limit);
    if (clamps && gated) u = std::clamp(u, -limit, limit);
    if (spec.function == Activation::kSwigluOai) u += spec.beta;
    Gate gate = gate_of(spec, g, gate_up.error[i]);
    if (step) gate.value = std::min(gate.value, limit);
    h.value[i] = gate.value * u;
    u_error += 2 * kU * std::fabs(u);
    h.error[i] = gate.slope * gate_up.error[i] * (std::fabs(u) + u_error) +
                 std::fabs(gate.value) * u_error +
                 (8 + 2 * gate.argument) * kU * std::fabs(h.value[i]);
  }
  return h;
}

// y += scale · B (A x), for the rows of y from `first` on.
void add_adapter(const LoraPair& pair, const Vector& x, int64_t first, Vector& y) {
  const int64_t rank = pair.rank, cols = static_cast<int64_t>(x.value.size());
  if (rank == 0) return;
  Vector t(rank);
  for (int64_t j = 0; j < rank; ++j) {
    double magnitude = 0;
    for (int64_t k = 0; k < cols; ++k) {
      const double a = pair.a[j * cols + k];
      t.value[j] += a * x.value[k];
      t.error[j] += std::fabs(a) * x.error[k];
      magnitude += std::fabs(a * x.value[k]);
    }
    t.error[j] += (static_cast<double>(cols) + 8) * kU * magnitude;
  }
  for (int64_t n = 0; n < static_cast<int64_t>(pair.b.size()) / rank; ++n) {
    double delta = 0, magnitude = 0, carried = 0;
    for (int64_t j = 0; j < rank; ++j) {
      const double b = static_cast<double>(pair.scale) * pair.b[n * rank + j];
      delta += b * t.value[j];
      magnitude += std::fabs(b * t.value[j]);
      carried += std::fabs(b) * t.error[j];
    }
    const int64_t row = first + n;
    y.value[row] += delta;
    y.error[row] += carried + (static_cast<double>(rank) + 16) * kU * magnitude +
                    2 * kU * std::fabs(y.value[row]);
  }
}

void add_adapters(const std::vector<LoraPair>& pairs, int64_t expert, const Vector& x,
                  int64_t first, Vector& y) {
  if (!pairs.empty()) add_adapter(pairs[expert], x, first, y);
}

}  // namespace

Precision precision_of(const Plan& plan) {
  const KernelPlan& first = *plan.matrices[0].kernel;
  const auto& key = plan.layer.scheme.activation;
  int bits = first.product_bits;
  for (const MatrixPlan& matrix : plan.matrices) bits = std::min(bits, matrix.kernel->product_bits);
  return {bits, plan.activation_dtype == DType::kF32 ? 24 : 8, first.product_group,
          first.product_group > 0 && key && key->scale_dtype == DType::kF8E8M0};
}

Expected expected(const LayerSpec& spec, const DescribedWeights& weights,
                  std::span<const float> hidden, std::span<const int32_t> topk_ids,
                  std::span<const float> topk_weights, std::span<const LoraWeights> adapters,
                  std::span<const int32_t> lora_ids, Precision precision) {
  const auto num_tokens = static_cast<int64_t>(hidden.size()) / spec.hidden_size;
  Expected result{std::vector<double>(hidden.size()), std::vector<double>(hidden.size())};
  const bool quantizes = spec.scheme.activation.has_value();
  const bool integers = quantizes && spec.scheme.activation->dtype == DType::kI8;
  auto input_scale = [](const DescribedMatrix& matrix, int64_t e) {
    return matrix.input_scales().empty() ? 0.0f : matrix.input_scales()[e];
  };
  auto prepare = [&](Vector& x, float scale) {
    if (quantizes) quantize(spec.scheme, x, scale, precision.stored);
    if (precision.one_exponent)
      cut(x, precision.products, static_cast<int64_t>(x.value.size()), x.rounding);
    else if (!quantizes)
      cut(x, precision.products, precision.group, x.rounding);
  };
  for (int64_t e = 0; e < spec.num_experts; ++e) {
    if (std::find(topk_ids.begin(), topk_ids.end(), e) == topk_ids.end()) continue;
    const Decoded w13(*weights.w13.expert(e), precision.one_exponent),
        w2(*weights.w2.expert(e), precision.one_exponent);
    for (int64_t slot = 0; slot < num_tokens * spec.top_k; ++slot) {
      if (topk_ids[slot] != e) continue;
      const int64_t token = slot / spec.top_k;
      const bool weigh_input = spec.routing.weight_on_input;
      const int32_t lora = lora_ids.empty() ? -1 : lora_ids[token];
      const LoraWeights* adapter = lora < 0 ? nullptr : &adapters[lora];
      Vector x(spec.hidden_size);
      for (int64_t i = 0; i < spec.hidden_size; ++i) {
        x.value[i] = hidden[token * spec.hidden_size + i];
        if (!weigh_input) continue;
        x.value[i] *= topk_weights[slot];
        x.error[i] = kU * std::fabs(x.value[i]);
      }
      if (weigh_input) cut(x, precision.stored);
      Vector codes = x;
      prepare(codes, input_scale(weights.w13, e));
      Vector gate_up = multiply(w13, codes, integers);
      cut(gate_up, precision.stored);
      if (adapter != nullptr) {
        add_adapters(adapter->gate, e, x, 0, gate_up);
        add_adapters(adapter->up, e, x, spec.w13_rows() - spec.intermediate_size, gate_up);
        cut(gate_up, precision.stored);
      }
      Vector h = activate(spec.activation, spec.intermediate_size, gate_up);
      cut(h, precision.stored);
      codes = h;
      prepare(codes, input_scale(weights.w2, e));
      Vector y = multiply(w2, codes, integers);
      cut(y, precision.stored);
      if (adapter != nullptr) {
        add_adapters(adapter->down, e, h, 0, y);
        cut(y, precision.stored);
      }
      for (int64_t i = 0; i < spec.hidden_size; ++i) {
        const double weight = weigh_input ? 1 : topk_weights[slot];
        const double value = weight * y.value[i];
        result.output[token * spec.hidden_size + i] += value;
        result.bound[token * spec.hidden_size + i] +=
            std::fabs(weight) * y.error[i] +
            (static_cast<double>(spec.top_k) + 2) * kU * std::fabs(value);
      }
    }
  }
  return result;
}

}  // namespace moracle::conformance
