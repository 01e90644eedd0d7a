// Sets of flags as text, in the order of their bits.
#include "base/text.h"
#include "moracle/oracle.h"

namespace moracle {
namespace {

std::string listed(uint32_t set, std::span<const std::string_view> all, const char* separator) {
  std::vector<std::string_view> there;
  for (size_t bit = 0; bit < all.size(); ++bit) {
    if (set >> bit & 1u) there.push_back(all[bit]);
  }
  return there.empty() ? "none" : join(there, separator);
}

}  // namespace

std::string_view name(Platform platform) {
  constexpr std::string_view kNames[] = {"cpu", "cuda", "opencl"};
  return kNames[static_cast<int>(platform)];
}

// As Linux spells them.
std::string names(Isa set) {
  constexpr std::string_view kNames[] = {"avx2",        "avx_vnni",    "avx512",   "avx512_vnni",
                                         "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16"};
  return listed(static_cast<uint32_t>(set), kNames, " ");
}

std::string names(GpuFeature set) {
  constexpr std::string_view kNames[] = {"subgroups", "integer_dot", "fp16", "matrix"};
  return listed(static_cast<uint32_t>(set), kNames, " ");
}

std::string names(Feature set) {
  constexpr std::string_view kNames[] = {"zero points", "act-order",       "biases",
                                         "determinism", "expert parallel", "batched format",
                                         "LoRA"};
  return listed(static_cast<uint32_t>(set), kNames, ", ");
}

}  // namespace moracle
