#include "checkpoint/gguf/translate_config.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace translate_config {
namespace {

using nlohmann::json;

// "rope_scaling.factor" inside an object; null if it is absent.
const json* find(const json& values, std::string_view place) {
  const json* at = &values;
  while (at->is_object()) {
    const size_t dot = place.find('.');
    const auto found = at->find(std::string(place.substr(0, dot)));
    if (found == at->end()) return nullptr;
    at = &*found;
    if (dot == place.npos) return at;
    place.remove_prefix(dot + 1);
  }
  return nullptr;
}

class Translation {
 public:
  Translation(const Config& metadata, const GgufConvention& family, const Tensors& stored)
      : metadata_(metadata), family_(family), stored_(stored) {}

  Result<TranslatedConfig> run() {
    MORACLE_CHECK(count_layers());
    std::vector<std::span<const GgufKey>> tables = {family_.keys, kGgufDecoderKeys};
    if (family_.usual_heads) tables.push_back(kGgufHeadKeys);
    for (const std::span<const GgufKey> table : tables) {
      for (const GgufKey& key : table) {
        if (seen_.insert(key.from).second) MORACLE_CHECK(add(key));
      }
    }
    add_left_out();
    for (const GgufKey& key : repeats_) MORACLE_CHECK(check_repeated(key));
    look_at_tensors();
    add_tokens();
    return std::move(to_);
  }

 private:
  std::string full(std::string_view key) const { return str(family_.architecture, ".", key); }

  void put(std::string_view place, json value, std::string origin) {
    json* at = &to_.values;
    std::string_view rest = place;
    for (size_t dot = rest.find('.'); dot != rest.npos; dot = rest.find('.')) {
      at = &(*at)[std::string(rest.substr(0, dot))];
      rest.remove_prefix(dot + 1);
    }
    (*at)[std::string(rest)] = std::move(value);
    to_.origins[std::string(place)] = std::move(origin);
  }

  // Layers for multi-token prediction follow the others and count as blocks.
  Status count_layers() {
    const std::string blocks = full("block_count"), next = full("nextn_predict_layers");
    MORACLE_TRY(num_blocks_, metadata_.integer({blocks.c_str()}, 1, 10'000));
    MORACLE_TRY(const int64_t extra, metadata_.integer_or(0, {next.c_str()}, 0, num_blocks_ - 1));
    put("num_hidden_layers", num_blocks_ - extra, blocks);
    if (extra > 0) put("num_nextn_predict_layers", extra, next);
    return {};
  }

  Status add(const GgufKey& key) {
    const std::string from = full(key.from);
    const json* value = metadata_.find({from.c_str()});
    if (key.repeats) {
      if (value != nullptr) repeats_.push_back(key);
      return {};
    }
    to_.origins[std::string(key.to)] = from;
    if (value == nullptr) {
      if (!key.required) return {};
      return metadata_.wrong({from.c_str()}, "a value", "it is missing");
    }
    // llama.cpp's word for RoPE without scaling.
    if (key.from != "rope.scaling.type" || *value != "none")
      put(key.to, is_of_model(key) ? *value : of_all_layers(*value), from);
    return {};
  }

  // Layers do not differ in these numbers, so that an array of them is an error.
  static bool is_of_model(const GgufKey& key) {
    return key.from == "context_length" || key.from == "embedding_length";
  }

  // The number that an array repeats for each layer, or the value itself.
  json of_all_layers(const json& value) const {
    const bool equal = value.is_array() && static_cast<int64_t>(value.size()) == num_blocks_ &&
                       std::all_of(value.begin(), value.end(), [&](const json& one) {
                         return one.is_number() && one == value[0];
                       });
    return equal ? value[0] : value;
  }

  void add_left_out() {
    const json *hidden = find(to_.values, "hidden_size"),
               *heads = find(to_.values, "num_attention_heads");
    if (heads == nullptr) return;
    to_.left_out["num_key_value_heads"] = *heads;
    if (!family_.usual_heads) return;
    to_.left_out["rope_theta"] = 10000.0;
    // A factor without a type is linear.
    const std::string type = full("rope.scaling.type");
    if (!metadata_.has({type.c_str()}) && find(to_.values, "rope_scaling.factor") != nullptr)
      to_.values["rope_scaling"]["rope_type"] = "linear";
    if (hidden->is_number_unsigned() && heads->is_number_unsigned() && *heads != 0)
      to_.left_out["head_dim"] = hidden->get<uint64_t>() / heads->get<uint64_t>();
  }

  Status check_repeated(const GgufKey& key) {
    const std::string from = full(key.from);
    const json value = of_all_layers(*metadata_.find({from.c_str()}));
    const json* other = find(to_.values, key.to);
    if (other == nullptr) other = find(to_.left_out, key.to);
    if (other != nullptr && *other == value) return {};
    const auto origin = to_.origins.find(key.to);
    return metadata_.unsupported(
        {from.c_str()},
        str("the value of ", origin == to_.origins.end() ? std::string(key.to) : origin->second,
            ", ", other == nullptr ? "which is missing" : JsonField::shown(*other)),
        "it is " + JsonField::shown(value));
  }

  void look_at_tensors() {
    const std::string name = "token_embd.weight";
    const TensorView* const table = stored_.find(name);
    if (table != nullptr && table->shape.size() == 2)
      put("vocab_size", table->shape[0], str("tensor '", name, "'"));
    put("tie_word_embeddings", stored_.find("output.weight") == nullptr, "tensor 'output.weight'");
    const std::string vocabulary = full("vocab_size");  // the tensor decides
    (void)metadata_.find({vocabulary.c_str()});
  }

  // Generation ends at an end-of-text, end-of-turn or end-of-message token.
  void add_tokens() {
    constexpr const char *kStart = "tokenizer.ggml.bos_token_id",
                         *kEnd = "tokenizer.ggml.eos_token_id";
    if (const json* const id = metadata_.find({kStart}); id != nullptr)
      put("bos_token_id", *id, kStart);
    json ends = json::array();
    for (const char* key : {kEnd, "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
      const json* const id = metadata_.find({key});
      if (id != nullptr && std::find(ends.begin(), ends.end(), *id) == ends.end())
        ends.push_back(*id);
    }
    if (!ends.empty()) put("eos_token_id", ends, kEnd);
  }

  const Config& metadata_;
  const GgufConvention& family_;
  const Tensors& stored_;
  TranslatedConfig to_;
  std::set<std::string_view> seen_;
  std::vector<GgufKey> repeats_;
  int64_t num_blocks_ = 0;
};

}  // namespace
}  // namespace translate_config

Result<TranslatedConfig> translate_gguf_config(const Config& metadata, const GgufConvention& family,
                                               const Tensors& stored) {
  return translate_config::Translation(metadata, family, stored).run();
}

}  // namespace moracle
