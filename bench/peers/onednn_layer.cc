// A layer of experts on oneDNN: one int8 matmul per expert and projection, gate and up in one, with
// what lies between them in OpenMP loops. Weights lie in the layout that oneDNN asks for; it is
// built by onednn.py against PyPI's headers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "onednn_matmul.h"

namespace {

using moracle::peers::Matmul;
using moracle::peers::Weight;

// One row to int8 within its largest magnitude; returns the scale.
float quantize(const float* x, int64_t count, int8_t* codes) {
  float largest = 1e-10f;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float inverse = 127 / largest;
  for (int64_t i = 0; i < count; ++i)
    codes[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
  return largest / 127;
}

struct Experts {
  Experts(int64_t e, int64_t h, int64_t i, int64_t k, int64_t layers)
      : engine(dnnl::engine::kind::cpu, 0),
        stream(engine),
        num_experts(e),
        hidden(h),
        inter(i),
        top_k(k),
        up(engine, h, 2 * i),
        down(engine, i, h),
        w13(layers * e),
        w2(layers * e) {}

  dnnl::engine engine;
  dnnl::stream stream;
  int64_t num_experts, hidden, inter, top_k;
  Matmul up, down;
  std::vector<Weight> w13, w2;  // [layer, expert]

  // One batch: pairs of token and expert, sorted by expert.
  std::vector<int64_t> first, token, position;
  std::vector<int8_t> x, gathered, active;
  std::vector<float> x_scale, active_scale, gate_up, result;

  void route(int64_t tokens, const int32_t* ids) {
    const int64_t pairs = tokens * top_k;
    first.assign(num_experts + 1, 0);
    for (int64_t p = 0; p < pairs; ++p) ++first[ids[p] + 1];
    for (int64_t e = 0; e < num_experts; ++e) first[e + 1] += first[e];
    std::vector<int64_t> next(first.begin(), first.end() - 1);
    for (int64_t p = 0; p < pairs; ++p) {
      position[p] = next[ids[p]]++;
      token[position[p]] = p / top_k;
    }
  }

  void reserve(int64_t tokens, const int32_t* ids) {
    const int64_t pairs = tokens * top_k;
    token.resize(pairs), position.resize(pairs), active_scale.resize(pairs), x_scale.resize(tokens);
    x.resize(tokens * hidden), gathered.resize(pairs * hidden), active.resize(pairs * inter);
    gate_up.resize(pairs * 2 * inter), result.resize(pairs * hidden);
    route(tokens, ids);
    for (int64_t e = 0; e < num_experts; ++e) {
      const int64_t rows = first[e + 1] - first[e];
      if (rows > 0) up.prepare(rows), down.prepare(rows);
    }
  }

  void run(int64_t layer, const float* in, int64_t tokens, const int32_t* ids, const float* weights,
           float* out) {
    const int64_t pairs = tokens * top_k;
    route(tokens, ids);
#pragma omp parallel
    {
#pragma omp for
      for (int64_t t = 0; t < tokens; ++t)
        x_scale[t] = quantize(&in[t * hidden], hidden, &x[t * hidden]);
#pragma omp for
      for (int64_t p = 0; p < pairs; ++p)
        std::memcpy(&gathered[p * hidden], &x[token[p] * hidden], hidden);
    }
    each_expert([&](int64_t e, int64_t at, int64_t rows) {
      up.run(rows, &gathered[at * hidden], w13[layer * num_experts + e], &gate_up[at * 2 * inter],
             stream);
    });
#pragma omp parallel for
    for (int64_t p = 0; p < pairs; ++p) {
      float* row = &gate_up[p * 2 * inter];
      const float scale = x_scale[token[p]];
#pragma omp simd
      for (int64_t i = 0; i < inter; ++i) {
        const float g = row[i] * scale;
        row[i] = g / (1 + std::exp(-g)) * (row[inter + i] * scale);
      }
      active_scale[p] = quantize(row, inter, &active[p * inter]);
    }
    each_expert([&](int64_t e, int64_t at, int64_t rows) {
      down.run(rows, &active[at * inter], w2[layer * num_experts + e], &result[at * hidden],
               stream);
    });
#pragma omp parallel for
    for (int64_t t = 0; t < tokens; ++t) {
      float* sum = &out[t * hidden];
      std::fill(sum, sum + hidden, 0.0f);
      for (int64_t j = 0; j < top_k; ++j) {
        const int64_t p = position[t * top_k + j];
        const float weight = weights[t * top_k + j] * active_scale[p];
        for (int64_t c = 0; c < hidden; ++c) sum[c] += weight * result[p * hidden + c];
      }
    }
  }

  template <class Work>
  void each_expert(const Work& work) {
    for (int64_t e = 0; e < num_experts; ++e)
      if (first[e + 1] > first[e]) work(e, first[e], first[e + 1] - first[e]);
    stream.wait();
  }
};

}  // namespace

extern "C" {

Experts* experts_make(int64_t e, int64_t h, int64_t i, int64_t top_k, int64_t layers) try {
  return new Experts(e, h, i, top_k, layers);
} catch (const dnnl::error&) {
  return nullptr;
}

/// w13 [2I, H] and w2 [H, I], with one scale per row.
void experts_set(Experts* x, int64_t layer, int64_t e, const int8_t* w13, const float* s13,
                 const int8_t* w2, const float* s2) {
  x->w13[layer * x->num_experts + e] = x->up.pack(w13, s13, x->stream);
  x->w2[layer * x->num_experts + e] = x->down.pack(w2, s2, x->stream);
}

/// Creates the memory and matmuls of such a batch, so that none is created while it is timed.
void experts_reserve(Experts* x, int64_t tokens, const int32_t* ids) {
  x->reserve(tokens, ids);
}

void experts_run(Experts* x, int64_t layer, const float* in, int64_t tokens, const int32_t* ids,
                 const float* weights, float* out) {
  x->run(layer, in, tokens, ids, weights, out);
}

}  // extern "C"
