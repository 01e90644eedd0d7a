// Matmuls of oneDNN: int8 with int8 to f32, a scale per column of the weights.
#pragma once

#include <cstdint>
#include <cstring>
#include <unordered_map>

#include "oneapi/dnnl/dnnl.hpp"

namespace moracle::peers {

using dnnl::memory;
using Tag = memory::format_tag;
using Type = memory::data_type;

constexpr int64_t kUsualRows = 32;  // rows of the matmul that chooses the weights' layout

struct Weight {
  memory codes, scales;
};

// Matmuls of [rows, k] with [k, n], by rows.
class Matmul {
 public:
  Matmul(const dnnl::engine& engine, int64_t k, int64_t n) : engine_(engine), k_(k), n_(n) {
    layout_ = describe(kUsualRows, memory::desc({k, n}, Type::s8, Tag::any)).weights_desc();
  }

  /// Packs codes [n, k], with one scale per row.
  Weight pack(const int8_t* codes, const float* scales, dnnl::stream& stream) const {
    const memory::desc plain({k_, n_}, Type::s8, Tag::ba);
    memory from(plain, engine_, const_cast<int8_t*>(codes));
    Weight weight{memory(layout_, engine_), memory({{n_}, Type::f32, Tag::a}, engine_)};
    dnnl::reorder(from, weight.codes).execute(stream, from, weight.codes);
    stream.wait();
    std::memcpy(weight.scales.get_data_handle(), scales, n_ * sizeof(float));
    return weight;
  }

  void prepare(int64_t rows) {
    if (made_.count(rows) == 0) made_.emplace(rows, dnnl::matmul(describe(rows, layout_)));
  }

  void run(int64_t rows, int8_t* x, const Weight& weight, float* y, dnnl::stream& stream) {
    memory from({{rows, k_}, Type::s8, Tag::ab}, engine_, x);
    memory to({{rows, n_}, Type::f32, Tag::ab}, engine_, y);
    prepare(rows);
    made_.at(rows).execute(stream, {{DNNL_ARG_SRC, from},
                                    {DNNL_ARG_WEIGHTS, weight.codes},
                                    {DNNL_ARG_DST, to},
                                    {DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS, weight.scales}});
  }

 private:
  dnnl::matmul::primitive_desc describe(int64_t rows, const memory::desc& weights) const {
    dnnl::primitive_attr attr;
    attr.set_scales_mask(DNNL_ARG_WEIGHTS, 1 << 1);
    return {engine_, memory::desc({rows, k_}, Type::s8, Tag::ab), weights,
            memory::desc({rows, n_}, Type::f32, Tag::ab), attr};
  }

  dnnl::engine engine_;
  int64_t k_, n_;
  memory::desc layout_;
  std::unordered_map<int64_t, dnnl::matmul> made_;
};

}  // namespace moracle::peers
