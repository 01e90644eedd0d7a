// The nonlinearities between the experts' GEMMs, in f32.
#include <algorithm>

#include "base/try.h"
#include "kernels/check_ops.h"
#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {

Status CpuOps::activate(const ActivationSpec& activation, int64_t intermediate_size,
                        const Matrix& gate_up, const Matrix& out, Stream) {
  MORACLE_CHECK(check_activation(activation));
  const int64_t gates = is_gated(activation.function) ? intermediate_size : 0;
  split_rows(gate_up.rows, intermediate_size, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float* const gate = f32_row(gate_up, r);
      float* const to = f32_row(out, r);
      vector_.activate(activation, gate, gate + gates, intermediate_size, to);
      std::fill(to + intermediate_size, to + out.cols, 0.0f);
    }
  });
  return {};
}

}  // namespace moracle
