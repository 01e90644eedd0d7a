#include "models/gguf/gguf_drafts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "quant/codec.h"

namespace moracle {

void put_gguf(GgufDraft& draft, std::string_view key, nlohmann::json value) {
  draft.metadata[str(draft.architecture, ".", key)] = std::move(value);
}

Tensors::Entry gguf_numbers(std::vector<float> values) {
  Tensors::Entry entry;
  entry.view = {nullptr, DType::kF32, {static_cast<int64_t>(values.size())}};
  const auto kept = std::make_shared<const std::vector<float>>(std::move(values));
  entry.make = [kept](const Tensors&, int64_t first, int64_t count,
                      ThreadPool&) -> Result<TensorData> {
    const auto* const data = reinterpret_cast<const std::byte*>(kept->data() + first);
    return TensorData{{data, DType::kF32, {count}}, {kept, data}};
  };
  return entry;
}

Tensors::Entry gguf_columns(const Tensors::Entry& matrix,
                            const std::function<int64_t(int64_t column)>& source) {
  Tensors::Entry entry = matrix;
  // Reads whole rows.
  entry.make = [matrix, source](const Tensors& tensors, int64_t first, int64_t count,
                                ThreadPool& pool) -> Result<TensorData> {
    const int64_t columns = matrix.view.shape[1], size = bits(matrix.view.dtype) / 8;
    const int64_t begin = first / columns, end = (first + count + columns - 1) / columns;
    MORACLE_TRY(const TensorData data, tensors.read(matrix.stored, matrix, begin * columns,
                                                    (end - begin) * columns, pool));
    const std::shared_ptr<std::byte[]> memory(
        new std::byte[static_cast<size_t>((end - begin) * columns * size)]);
    for (int64_t i = 0; i < (end - begin) * columns; ++i) {
      const int64_t from = i - i % columns + source(i % columns);
      std::memcpy(memory.get() + i * size, data.view.data + from * size, static_cast<size_t>(size));
    }
    const std::byte* const start = memory.get() + (first - begin * columns) * size;
    return TensorData{{start, matrix.view.dtype, {count}}, memory};
  };
  return entry;
}

Status put_softmax_gating(GgufDraft& draft) {
  put_gguf(draft, "expert_gating_func", static_cast<int64_t>(GgufGating::kSoftmax));
  return {};
}

Status put_sigmoid_gating(GgufDraft& draft) {
  put_gguf(draft, "expert_gating_func", static_cast<int64_t>(GgufGating::kSigmoid));
  return {};
}

Result<int64_t> head_dim_of(const GgufDraft& draft) {
  MORACLE_TRY(const int64_t hidden, draft.config.integer({"hidden_size"}, 1, 1 << 20));
  MORACLE_TRY(const int64_t heads, draft.config.integer({"num_attention_heads"}, 1, 1 << 16));
  return draft.config.integer_or(hidden / heads, {"head_dim"}, 2, 1 << 16);
}

Status put_partial_rotary(GgufDraft& draft) {
  MORACLE_TRY(const int64_t dim, head_dim_of(draft));
  const bool inside = draft.rope && draft.rope->has({"partial_rotary_factor"});
  MORACLE_TRY(const double fraction,
              (inside ? *draft.rope : draft.config).number_or(1, {"partial_rotary_factor"}));
  put_gguf(draft, "rope.dimension_count", std::llround(fraction * static_cast<double>(dim)));
  return {};
}

Status put_rotary_divisors(GgufDraft& draft, int64_t dim, const RotaryKinds& kinds) {
  const nlohmann::json* const type = draft.rope ? draft.rope->find({"rope_type", "type"}) : nullptr;
  const bool named = type == nullptr || *type == "default" || *type == "linear" || *type == "yarn";
  if (named) return {};
  MORACLE_TRY(const RotaryAndScale read, read_rotary(draft.config, draft.rope, dim, kinds));
  const Config& holder = draft.rope->has({"rope_theta"}) ? *draft.rope : draft.config;
  MORACLE_TRY(const double theta, holder.number({"rope_theta"}));
  std::vector<float> divisors;
  for (size_t i = 0; i < read.rotary.frequencies.size(); ++i) {
    const double base = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    // Pairs that do not rotate get the divisor that llama.cpp's converter has for them.
    constexpr float kNone = 1e30f;
    const auto frequency = static_cast<double>(read.rotary.frequencies[i]);
    divisors.push_back(frequency == 0 ? kNone : static_cast<float>(base / frequency));
  }
  draft.tensors.insert_or_assign("rope_freqs.weight", gguf_numbers(std::move(divisors)));
  return {};
}

Status put_window_pattern(GgufDraft& draft) {
  MORACLE_TRY(const std::vector<std::string> types, draft.config.texts({"layer_types"}));
  if (types.empty()) return {};
  nlohmann::json pattern = nlohmann::json::array();
  for (const std::string& type : types) pattern.push_back(type == "sliding_attention");
  put_gguf(draft, "attention.sliding_window_pattern", std::move(pattern));
  return {};
}

Status put_windowed(GgufDraft& draft) {
  MORACLE_TRY(const int64_t dim, head_dim_of(draft));
  const auto put = [&](const char* type, const char* key) -> Status {
    const std::optional<Config> own =
        draft.rope ? *draft.rope->object({type}) : std::optional<Config>();
    MORACLE_TRY(const double fraction,
                own ? own->number_or(1, {"partial_rotary_factor"}) : Result<double>(1.0));
    put_gguf(draft, key, std::llround(fraction * static_cast<double>(dim)));
    return {};
  };
  put_gguf(draft, "attention.key_length", dim);
  put_gguf(draft, "attention.value_length", dim);
  MORACLE_CHECK(put("full_attention", "rope.dimension_count"));
  MORACLE_CHECK(put("sliding_attention", "rope.dimension_count_swa"));
  return put_window_pattern(draft);
}

Status put_leading_dense(GgufDraft& draft) {
  MORACLE_TRY(const std::vector<std::string> types, draft.config.texts({"mlp_layer_types"}));
  if (types.empty()) return {};
  const auto sparse = std::find_if(types.begin(), types.end(),
                                   [](const std::string& type) { return type != "dense"; });
  put_gguf(draft, "leading_dense_block_count", sparse - types.begin());
  return {};
}

void put_rotary_sections(GgufDraft& draft) {
  const nlohmann::json* const sections = draft.rope ? draft.rope->find({"mrope_section"}) : nullptr;
  if (sections == nullptr || !sections->is_array()) return;
  constexpr size_t kSections = 4;
  nlohmann::json all = *sections;
  while (all.size() < kSections) all.push_back(0);
  put_gguf(draft, "rope.dimension_sections", std::move(all));
}

void split_rows(GgufDraft& draft, std::string_view ending, std::string_view first,
                std::string_view second) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : draft.tensors) {
    const bool even = !entry.view.shape.empty() && entry.view.shape[0] % 2 == 0;
    if (name.ends_with(ending) && even) names.push_back(name);
  }
  for (const std::string& name : names) {
    const std::string start = name.substr(0, name.size() - ending.size());
    Tensors::Entry half = draft.tensors.at(name);
    half.view.shape[0] /= 2;
    draft.tensors.erase(name);
    draft.tensors.insert_or_assign(str(start, first), half);
    half.first_byte += static_cast<int64_t>(half.view.num_bytes());
    draft.tensors.insert_or_assign(str(start, second), std::move(half));
  }
}

namespace {

// The keys or the values of kv_b_proj, whose rows are head after head: those of keys, then those of
// values.
struct HeadsOfKvB {
  Tensors::Entry kv;
  int64_t nope, value, rank;
  bool keys;

  Tensors::Entry entry(int64_t heads) const {
    Tensors::Entry made;
    made.view = {nullptr, DType::kF32, {heads, keys ? rank : value, keys ? nope : rank}};
    made.stored = kv.stored;
    made.make = [own = *this](const Tensors& tensors, int64_t first, int64_t count,
                              ThreadPool& pool) { return own.read(tensors, first, count, pool); };
    return made;
  }

 private:
  // Reads whole heads.
  Result<TensorData> read(const Tensors& tensors, int64_t first, int64_t count,
                          ThreadPool& pool) const {
    const int64_t size = (keys ? nope : value) * rank, all = (nope + value) * rank;
    const int64_t begin = first / size, end = (first + count + size - 1) / size;
    MORACLE_TRY(const TensorData data,
                tensors.read(kv.stored, kv, begin * all, (end - begin) * all, pool));
    const std::shared_ptr<std::byte[]> memory(
        new std::byte[static_cast<size_t>((end - begin) * size) * sizeof(float)]);
    auto* to = reinterpret_cast<float*>(memory.get());
    visit_codec(data.view.dtype, [&]<class Codec>() {
      for (int64_t head = 0; head < end - begin; ++head) {
        const int64_t from = head * all + (keys ? 0 : nope * rank);
        for (int64_t i = 0; i < size; ++i) {
          const int64_t at = keys ? i % nope * rank + i / nope : i;
          *to++ = static_cast<float>(Codec::decode(data.view.data, from + at));
        }
      }
    });
    const std::byte* const start = memory.get() + (first - begin * size) * sizeof(float);
    return TensorData{{start, DType::kF32, {count}}, memory};
  }
};

}  // namespace

Status put_latent(GgufDraft& draft) {
  const Config& config = draft.config;
  MORACLE_TRY(const int64_t heads, config.integer({"num_attention_heads"}, 1, 1 << 16));
  MORACLE_TRY(const int64_t rank, config.integer({"kv_lora_rank"}, 1, 1 << 20));
  MORACLE_TRY(const int64_t nope, config.integer({"qk_nope_head_dim"}, 1, 1 << 16));
  MORACLE_TRY(const int64_t rotated, config.integer({"qk_rope_head_dim"}, 1, 1 << 16));
  MORACLE_TRY(const int64_t value, config.integer({"v_head_dim"}, 1, 1 << 16));
  // All heads share the latent vector as one head of keys and values.
  put_gguf(draft, "attention.head_count_kv", 1);
  put_gguf(draft, "attention.key_length", rank + rotated);
  put_gguf(draft, "attention.value_length", rank);
  put_gguf(draft, "attention.key_length_mla", nope + rotated);
  put_gguf(draft, "attention.value_length_mla", value);
  if (draft.rope && draft.metadata.contains(str(draft.architecture, ".rope.scaling.type"))) {
    MORACLE_TRY(const double weight, draft.rope->number_or(0, {"mscale_all_dim"}));
    if (weight != 0) put_gguf(draft, "rope.scaling.yarn_log_multiplier", 0.1 * weight);
  }
  for (int64_t layer = 0; layer < draft.num_layers; ++layer) {
    const auto kv = draft.tensors.find(str("model.layers.", layer, ".self_attn.kv_b_proj.weight"));
    if (kv == draft.tensors.end()) continue;
    const Tensors::Entry source = kv->second;
    draft.tensors.erase(kv);
    for (const bool keys : {true, false}) {
      draft.tensors.insert_or_assign(
          str("blk.", layer, keys ? ".attn_k_b.weight" : ".attn_v_b.weight"),
          HeadsOfKvB{source, nope, value, rank, keys}.entry(heads));
    }
  }
  return {};
}

}  // namespace moracle
