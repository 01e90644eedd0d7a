#include "models/adapters/adapted_linear.h"

#include "base/scalar.h"
#include "base/try.h"
#include "kernels/kernel_device.h"

namespace moracle {
namespace {

// Writes numbers in the dtype of the device's activations.
void put(std::vector<std::byte>& to, DType dtype, int64_t at, float value) {
  if (dtype == DType::kF32)
    reinterpret_cast<float*>(to.data())[at] = value;
  else
    reinterpret_cast<uint16_t*>(to.data())[at] = float_to_bf16(value);
}

}  // namespace

Status AdaptedLinear::set_adapters(std::span<const AdaptedRows> rows, AdapterSpan adapters,
                                   const int32_t* lora_ids, Device& device) {
  const DType dtype = device.activation_dtype();
  for (const AdaptedRows& one : rows) {
    const auto count = static_cast<int64_t>(adapters.size());
    const int64_t a_rows = count * one.rank, b_rows = count * one.n;
    std::vector<std::byte> values(
        static_cast<size_t>(adapter_bytes({&one, 1}, adapters.size(), dtype)));
    for (int64_t id = 0; id < count; ++id) {
      const auto& modules = adapters[static_cast<size_t>(id)]->modules;
      const auto own = modules.find(one.module);
      if (own == modules.end()) continue;
      const LoraPair& pair = own->second;
      for (int64_t i = 0; i < pair.rank * one.k; ++i)
        put(values, dtype, id * one.rank * one.k + i, pair.a[i]);
      for (int64_t n = 0; n < one.n; ++n) {
        for (int64_t j = 0; j < pair.rank; ++j)
          put(values, dtype, a_rows * one.k + (id * one.n + n) * one.rank + j,
              pair.b[n * pair.rank + j] * pair.scale);
      }
    }
    MORACLE_TRY(Buffer memory, device.allocate(values.size()));
    MORACLE_CHECK(device.upload(memory.data(), values.data(), values.size()));
    MORACLE_CHECK(device.synchronize());  // before `values` is destroyed
    std::byte* const b = memory.as<std::byte>() + a_rows * one.k * bits(dtype) / 8;
    const LoraTable lora{{memory.data(), dtype, a_rows, one.k, one.k},
                         {b, dtype, b_rows, one.rank, one.rank},
                         1,
                         1,
                         one.rank,
                         one.n};
    tables_.push_back({one.first, lora, std::move(memory)});
  }
  num_adapters_ = static_cast<int64_t>(adapters.size());
  lora_ids_ = lora_ids;
  ops_ = &kernel_device(device).ops();
  return {};
}

Status AdaptedLinear::apply(const Matrix& x, const Matrix& y, Stream stream, int64_t first_token) {
  MORACLE_CHECK(linear_.apply(x, y, stream));
  for (const Table& table : tables_) {
    Matrix sliced = y;
    sliced.data = static_cast<std::byte*>(y.data) + table.first * bits(y.dtype) / 8;
    sliced.cols = table.lora.n;
    MORACLE_CHECK(ops_->add_lora(x, nullptr, {}, lora_ids_ + first_token, num_adapters_, table.lora,
                                 sliced, stream));
  }
  return {};
}

bool AdaptedLinear::serves(const LinearCall& call) const {
  return tables_.empty() && linear_.serves(call);
}

Status AdaptedLinear::apply(const LinearCall& call, Stream stream) {
  if (tables_.empty()) return linear_.apply(call, stream);
  return run_separately(call, *ops_, stream,
                        [&](const Matrix& x, const Matrix& y) { return apply(x, y, stream); });
}

int64_t AdaptedLinear::weight_bytes() const {
  int64_t bytes = linear_.weight_bytes();
  for (const Table& table : tables_) bytes += static_cast<int64_t>(table.memory.bytes());
  return bytes;
}

}  // namespace moracle
