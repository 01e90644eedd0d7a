#include "serve/tools/json_calls.h"
#include "serve/tools/tagged_calls.h"

namespace moracle::serve {

std::vector<int32_t> special_tags(const ToolFormat& format, const Tokenizer& tokenizer) {
  std::vector<std::string_view> tags(format.tags.begin(), format.tags.end());
  tags.push_back(format.open);
  tags.push_back(format.close);
  std::vector<int32_t> ids;
  for (const std::string_view tag : tags) {
    const std::optional<int32_t> id = tokenizer.id(tag);
    if (id && tokenizer.is_special(*id)) ids.push_back(*id);
  }
  return ids;
}

std::span<const ToolFormat> tool_formats() {
  using Marks = std::string_view;
  static constexpr Marks kMistral[] = {"[ARGS]", "[CALL_ID]"};
  static constexpr Marks kDeepSeek[] = {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
                                        "<｜tool▁call▁end｜>"};
  static constexpr Marks kKimi[] = {"<|tool_call_begin|>", "<|tool_call_argument_begin|>",
                                    "<|tool_call_end|>"};
  static constexpr Marks kGlm[] = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};
  static constexpr ToolFormat kFormats[] = {
      {"hermes", "<tool_call>", "</tool_call>", &parse_named_object, {}},
      {"qwen-coder", "<tool_call>", "</tool_call>", &parse_qwen_coder, {}},
      {"glm", "<tool_call>", "</tool_call>", &parse_glm, kGlm},
      {"minimax", "<minimax:tool_call>", "</minimax:tool_call>", &parse_minimax, {}},
      {"deepseek", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", &parse_deepseek, kDeepSeek},
      {"kimi", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", &parse_kimi, kKimi},
      {"mistral", "[TOOL_CALLS]", "", &parse_mistral, kMistral},
      {"llama", "", "", &parse_parameters, {}},
  };
  return kFormats;
}

}  // namespace moracle::serve
