#include "parallel/host_sums.h"

#include "base/scalar.h"

namespace moracle {
namespace {

template <class T, class Load, class Store>
void sum_as(std::span<const void* const> inputs, int64_t count, void* to, ThreadPool& pool,
            const Load& load, const Store& store) {
  constexpr int64_t kLeast = 1 << 14;  // waking a thread takes as long as these sums
  pool.split(
      count,
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          float sum = load(static_cast<const T*>(inputs[0])[i]);
          for (size_t p = 1; p < inputs.size(); ++p)
            sum += load(static_cast<const T*>(inputs[p])[i]);
          static_cast<T*>(to)[i] = store(sum);
        }
      },
      kLeast);
}

}  // namespace

void sum_inputs(std::span<const void* const> inputs, DType type, int64_t count, void* to,
                ThreadPool& pool) {
  const auto same = [](float value) { return value; };
  if (type == DType::kF32) {
    sum_as<float>(inputs, count, to, pool, same, same);
  } else if (type == DType::kBF16) {
    sum_as<uint16_t>(
        inputs, count, to, pool, [](uint16_t v) { return bf16_to_float(v); },
        [](float v) { return float_to_bf16(v); });
  } else {
    sum_as<uint16_t>(
        inputs, count, to, pool, [](uint16_t v) { return f16_to_float(v); },
        [](float v) { return float_to_f16(v); });
  }
}

}  // namespace moracle
