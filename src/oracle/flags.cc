// Flag sets as text, in bit order.
#include <algorithm>
#include <iterator>

#include "base/text.h"
#include "oracle/backend.h"
#include "oracle/machine/masked_isa.h"

namespace moracle {
namespace {

std::string listed(uint32_t set, std::span<const std::string_view> all, const char* separator) {
  std::vector<std::string_view> there;
  for (size_t bit = 0; bit < all.size(); ++bit) {
    if (set >> bit & 1u) there.push_back(all[bit]);
  }
  return there.empty() ? "none" : join(there, separator);
}

// The names that Linux uses.
constexpr std::string_view kIsaNames[] = {"avx2",        "avx_vnni",    "avx512",   "avx512_vnni",
                                          "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16"};

}  // namespace

std::string_view name(Platform platform) {
  constexpr std::string_view kNames[] = {"cpu", "cuda", "opencl"};
  return kNames[static_cast<int>(platform)];
}

std::string names(Isa set) {
  return listed(static_cast<uint32_t>(set), kIsaNames, " ");
}

Isa with_dependents(Isa features) {
  constexpr Isa kOnAvx512 =
      Isa::kAvx512Vnni | Isa::kAvx512Bf16 | Isa::kAvx512Fp16 | Isa::kAmxInt8 | Isa::kAmxBf16;
  auto has = [&](Isa feature) { return missing(feature, features) == Isa::kNone; };
  if (has(Isa::kAvx2)) features = features | Isa::kAvxVnni | Isa::kAvx512;
  if (has(Isa::kAvx512)) features = features | kOnAvx512;
  return features;
}

Result<Isa> parse_isa(std::string_view text) {
  Isa set = Isa::kNone;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view one = text.substr(at, end - at);
    const auto* const found = std::find(std::begin(kIsaNames), std::end(kIsaNames), one);
    if (found == std::end(kIsaNames)) {
      return Error{ErrorKind::kInvalidArgument, "", "without",
                   "a list of " + join(std::vector<std::string_view>(std::begin(kIsaNames),
                                                                     std::end(kIsaNames))),
                   str("'", one, "' is unknown")};
    }
    set = set | static_cast<Isa>(1u << (found - std::begin(kIsaNames)));
    at = end + 1;
  }
  return set;
}

std::string names(GpuFeature set) {
  constexpr std::string_view kNames[] = {"subgroups", "matrix", "shared_pointers", "atomics64",
                                         "cpu_cores"};
  return listed(static_cast<uint32_t>(set), kNames, " ");
}

std::string names(Library set) {
  constexpr std::string_view kNames[] = {"cuBLASLt", "cuBLASLt 12.9"};
  return listed(static_cast<uint32_t>(set), kNames, ", ");
}

std::string names(Feature set) {
  constexpr std::string_view kNames[] = {"zero points", "act-order",       "biases",
                                         "determinism", "expert parallel", "batched format",
                                         "LoRA"};
  return listed(static_cast<uint32_t>(set), kNames, ", ");
}

}  // namespace moracle
