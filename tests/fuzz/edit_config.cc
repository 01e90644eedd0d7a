#include "fuzz/edits.h"

#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

namespace moracle::testing {
namespace {

using nlohmann::json;

// Keys and values that readers look for. The fuzzer finds others by itself.
constexpr const char* kWords =
    "bits group_size sym desc_act dynamic format gptq_v2 zero_point ignore modules_to_not_convert "
    "num_bits strategy channel tensor group block token symmetric actorder block_structure static "
    "weight_block_size scale_fmt ue8m0 quant_algo MXFP8 FP8_PB_WO FP8 quantization Linear targets "
    "input_activations config_groups re:.*o_proj -:.*_proj GptOssForCausalLM model_type gpt_oss "
    "deepseek_v3 mlp_only_layers num_experts peft_type LORA lora_alpha use_rslora alpha_pattern "
    "use_dora modules_to_save bias gate_proj (.*)_proj";

std::string word(Bytes& bytes) {
  static const std::vector<std::string> words = [] {
    std::istringstream text(kWords);
    return std::vector<std::string>(std::istream_iterator<std::string>(text), {});
  }();
  return words[bytes.below(words.size())];
}

json value(Bytes& bytes, const json& others) {
  switch (bytes.byte() % 8) {
    case 0:
      return nullptr;
    case 1:
      return bytes.byte() % 2 == 0;
    case 2:
      return bytes.size();
    case 3:
      return word(bytes);
    case 4:
      return json::array({bytes.size(), bytes.size()});
    case 5:
      return std::next(others.begin(), static_cast<long>(bytes.below(others.size()))).value();
    case 6:
      return bytes.byte();
    default: {
      const std::string text = bytes.text();
      json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
      return parsed.is_discarded() ? json(text) : parsed;
    }
  }
}

}  // namespace

void edit_config(json& config, Bytes& bytes) {
  const json flat = config.flatten();  // "/quantization_config/bits": 4
  const size_t index = bytes.below(flat.size());
  json::json_pointer at(std::next(flat.begin(), static_cast<long>(index)).key());
  const uint8_t how = bytes.byte();
  for (int up = how % 4; up > 1; --up) at = at.parent_pointer();
  json& place = config.at(at);
  json new_value = value(bytes, flat);
  if (how / 4 % 4 == 0 && !at.empty() && config.at(at.parent_pointer()).is_object()) {
    config.at(at.parent_pointer()).erase(at.back());
  } else if (how / 4 % 4 == 1 && place.is_object()) {
    place[how & 128 ? bytes.text() : word(bytes)] = std::move(new_value);
  } else if (how / 4 % 4 == 1 && place.is_array()) {
    place.push_back(std::move(new_value));
  } else {
    place = std::move(new_value);
  }
}

}  // namespace moracle::testing
