#include "kernels/kernel_weights.h"

#include <vector>

#include "base/text.h"
#include "base/try.h"

namespace moracle {

Result<KernelWeights> convert(DescribedMatrix&& from, const Layout& to, Device& device,
                              const Progress& progress) {
  const DescribedMatrix source = std::move(from);
  KernelWeights weights{
      &to, source.scheme(), source.shape(), source.num_experts(), to.sections(source.shape()), {},
      {}};
  const bool is_static = weights.scheme.activation && !weights.scheme.activation->dynamic;
  const size_t wanted_scales = is_static ? source.num_experts() : 0;
  if (source.input_scales().size() != wanted_scales) {
    return Error{
        ErrorKind::kInvalidArgument, "", "input scales",
        str(wanted_scales, " for ", source.num_experts(), " experts of ", name(weights.scheme)),
        str("there are ", source.input_scales().size())};
  }
  const size_t bytes = weights.sections.bytes;
  MORACLE_TRY(weights.buffer, device.allocate(bytes * weights.num_experts));
  std::vector<std::byte> staging(device.host_visible() ? 0 : bytes);
  const int64_t total = source.source_bytes();
  for (int64_t e = 0; e < weights.num_experts; ++e) {
    auto* const place = weights.buffer.as<std::byte>() + e * static_cast<int64_t>(bytes);
    {
      MORACLE_TRY(const CanonicalMatrix expert, source.expert(e));
      to.pack(expert, staging.empty() ? place : staging.data());
    }
    source.release(e);
    if (!staging.empty()) MORACLE_CHECK(device.upload(place, staging.data(), bytes));
    if (progress && !progress(total * (e + 1) / weights.num_experts, total)) {
      return Error{ErrorKind::kCancelled, "", "loading", "", "stopped on request"};
    }
  }
  const std::vector<float>& scales = source.input_scales();
  if (!scales.empty()) {
    MORACLE_TRY(weights.input_scales, device.allocate(scales.size() * sizeof(float)));
    MORACLE_CHECK(
        device.upload(weights.input_scales.data(), scales.data(), scales.size() * sizeof(float)));
    MORACLE_CHECK(device.synchronize());
  }
  return weights;
}

Status replace(const KernelWeights& live, const KernelWeights& fresh, Device& device,
               Stream stream) {
  MORACLE_CHECK(device.copy(live.buffer.data(), fresh.buffer.data(), fresh.buffer.bytes(), stream));
  return device.copy(live.input_scales.data(), fresh.input_scales.data(),
                     fresh.input_scales.bytes(), stream);
}

}  // namespace moracle
