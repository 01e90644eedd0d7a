#include "serve/tools/gemma_calls.h"
#include "serve/tools/json_calls.h"
#include "serve/tools/tagged_calls.h"

namespace moracle::serve {

std::vector<int32_t> special_tags(const ToolFormat& format, const Tokenizer& tokenizer) {
  std::vector<std::string_view> tags(format.tags.begin(), format.tags.end());
  tags.push_back(format.open);
  tags.push_back(format.close);
  return special_ids(tags, tokenizer);
}

std::vector<int32_t> special_ids(std::span<const std::string_view> tags,
                                 const Tokenizer& tokenizer) {
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
  static constexpr Marks kGemma[] = {"<|\"|>"};
  static constexpr Marks kGlm[] = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};
  static constexpr ToolFormat kFormats[] = {
      {"hermes", "<tool_call>", "</tool_call>", &parse_named_object, {}, "json", "{", "}"},
      {"qwen-coder",
       "<tool_call>",
       "</tool_call>",
       &parse_qwen_coder,
       {},
       "qwen_xml",
       "<parameter=",
       "</parameter>"},
      {"glm", "<tool_call>", "</tool_call>", &parse_glm, kGlm, "glm_xml", "<arg_key>",
       "</arg_value>"},
      {"minimax",
       "<minimax:tool_call>",
       "</minimax:tool_call>",
       &parse_minimax,
       {},
       "minimax_xml",
       "<parameter name=",
       "</parameter>"},
      {"deepseek", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", &parse_deepseek, kDeepSeek,
       "json", "{", "}"},
      {"deepseek-dsml",
       "<｜DSML｜function_calls>",
       "</｜DSML｜function_calls>",
       &parse_dsml,
       {},
       "deepseek_xml",
       "<｜DSML｜parameter name=",
       "</｜DSML｜parameter>"},
      {"deepseek-v4",
       "<｜DSML｜tool_calls>",
       "</｜DSML｜tool_calls>",
       &parse_dsml,
       {},
       "deepseek_xml",
       "<｜DSML｜parameter name=",
       "</｜DSML｜parameter>"},
      {"kimi", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", &parse_kimi, kKimi,
       "json", "{", "}"},
      {"mistral", "[TOOL_CALLS]", "", &parse_mistral, kMistral, "json", "{", "}", "", kMistral[0]},
      {"gemma", "<|tool_call>", "<tool_call|>", &parse_gemma, kGemma},
      {"gpt-oss",
       " to=functions.",
       "<|call|>",
       &parse_channel_call,
       {},
       "json",
       "{",
       "}",
       "",
       "",
       true},
      {"llama", "", "", &parse_parameters, {}, "json", "{", "}"},
  };
  return kFormats;
}

}  // namespace moracle::serve
