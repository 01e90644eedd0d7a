// Dispatches on the kind of attention. The kinds are in the other files here.
#include "models/attention/attention.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "moracle/model.h"

namespace moracle {

AttentionSizes attention_sizes(const AttentionDescription& attention, int64_t max_num_tokens,
                               DType dtype) {
  return std::visit(
      [&](const auto& kind) { return attention_sizes(kind.spec, max_num_tokens, dtype); },
      attention);
}

std::unique_ptr<Attention> make_attention(const AttentionDescription& attention) {
  return std::visit([](const auto& kind) { return make_attention(kind.spec); }, attention);
}

std::vector<float> by_tap(const std::vector<float>& weights, int64_t kernel) {
  const auto taps = static_cast<size_t>(kernel), cols = weights.size() / taps;
  std::vector<float> turned(weights.size());
  for (size_t c = 0; c < cols; ++c) {
    for (size_t j = 0; j < taps; ++j) turned[j * cols + c] = weights[c * taps + j];
  }
  return turned;
}

CachedBytes cached_bytes(const AttentionSizes& sizes, DType dtype) {
  if (sizes.num_kv_heads == 0) return {};
  const auto of = [&](int64_t size) {
    return sizes.num_kv_heads * cached_bytes(dtype, size / sizes.num_kv_heads);
  };
  const int64_t scale = dtype == DType::kI8 ? static_cast<int64_t>(sizeof(float)) : 0;
  CachedBytes bytes{of(sizes.key_size), of(sizes.value_size), sizes.num_kv_heads * scale,
                    cached_bytes(index_dtype(dtype), sizes.index_size)};
  if (sizes.entry_rate == 0) return bytes;
  bytes.entry = cached_bytes(dtype, sizes.entry_size);
  bytes.entry_key = cached_bytes(index_dtype(dtype), sizes.entry_index_size);
  bytes.entry_rate = sizes.entry_rate;
  return bytes;
}

namespace {

Error no_kernels_for(const char* what, Platform platform) {
  return {ErrorKind::kUnsupported, "", "device",
          str("cpu or cuda for ", what, ", because other devices have no kernels for it"),
          str("it is of the kind ", name(platform))};
}

}  // namespace

Status check_attention(const AttentionDescription& attention, Platform platform, DType cache) {
  const auto* const latent = std::get_if<LatentDescription>(&attention);
  const auto* const heads = std::get_if<GroupedQueryDescription>(&attention);
  const bool pools = (latent != nullptr && latent->spec.indexer.pool > 0) ||
                     (heads != nullptr && heads->spec.indexer.pool > 0);
  if (pools && platform == Platform::kOpenCl)
    return no_kernels_for("sparse attention to pools of positions", platform);
  if (!std::holds_alternative<CompressedDescription>(attention)) return {};
  if (platform == Platform::kOpenCl) return no_kernels_for("compressed attention", platform);
  if (bits(cache) > 8) return {};
  return Error{ErrorKind::kUnsupported, "", "kv_cache",
               "f32, bf16 or f16 with compressed attention, because entries have no scales",
               str("it is ", kv_cache_name(cache))};
}

DType index_dtype(DType cache) {
  return bits(cache) == 8 ? DType::kBF16 : cache;
}

constexpr DType kCacheTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kI8,
                                 DType::kF8E4M3};

std::string_view kv_cache_name(DType dtype) {
  return dtype == DType::kF8E4M3 ? "fp8" : dtype == DType::kI8 ? "int8" : name(dtype);
}

Status set_scales(LayerCache& cache, const LayerDescription& layer) {
  if (cache.dtype != DType::kF8E4M3) return {};
  const auto set = [](float& to, const std::vector<float>& from, std::string_view what) -> Status {
    to = from.empty() ? 1 : from[0];
    if (from.size() <= 1 && to > 0) return {};
    return Error{ErrorKind::kUnsupported, "", "kv_cache",
                 str("one scale above 0 for the ", what, " of a layer with fp8"),
                 from.size() > 1 ? str("the file has ", from.size()) : str("it is ", to)};
  };
  MORACLE_CHECK(set(cache.key_scale, layer.key_scales, "keys"));
  return set(cache.value_scale, layer.value_scales, "values");
}

Result<std::optional<DType>> parse_kv_cache(std::string_view text) {
  if (text == "auto") return std::optional<DType>();
  for (const DType dtype : kCacheTypes)
    if (text == kv_cache_name(dtype)) return std::optional(dtype);
  return Error{ErrorKind::kInvalidArgument, "", "kv_cache", "auto, f32, bf16, f16, int8 or fp8",
               str("it is '", text, "'")};
}

Result<DType> cache_dtype(std::optional<DType> wanted, Platform platform, DType activations) {
  const DType dtype = wanted.value_or(activations);
  if (std::find(std::begin(kCacheTypes), std::end(kCacheTypes), dtype) == std::end(kCacheTypes)) {
    return Error{ErrorKind::kInvalidArgument, "", "kv_cache", "f32, bf16, f16, i8 or f8_e4m3",
                 str("it is ", name(dtype))};
  }
  const auto refuse = [&](std::string_view need) {
    return Error{ErrorKind::kUnsupported, "", "kv_cache", std::string(need),
                 str("the device is of the kind ", name(platform))};
  };
  if (dtype == DType::kI8 && platform != Platform::kCpu)
    return refuse("a CPU for int8, because other devices have no kernels that read its scales");
  if (dtype == DType::kF8E4M3 && platform == Platform::kOpenCl)
    return refuse("a CPU or an NVIDIA GPU for fp8, because OpenCL devices have no kernels for it");
  return dtype;
}

}  // namespace moracle
