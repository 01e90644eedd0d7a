#include "serve/tools/gemma/gemma_calls.h"
#include "serve/tools/json_calls.h"
#include "serve/tools/minimax_m3/minimax_m3_calls.h"
#include "serve/tools/minimax_m3/minimax_m3_schema.h"
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
  // The text before the tags is a token of its own, and so is the tag without it.
  static constexpr Marks kMiniMaxM3[] = {"]<]minimax[>[", "<tool_call>", "</tool_call>"};
  static constexpr Marks kGemma[] = {"<|\"|>"};
  static constexpr Marks kGlm[] = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};
  static constexpr ToolFormat kFormats[] = {
      {.name = "hermes",
       .open = "<tool_call>",
       .close = "</tool_call>",
       .parse = &parse_named_object,
       .style = "json",
       .arguments_open = "{",
       .arguments_close = "}"},
      {.name = "qwen-coder",
       .open = "<tool_call>",
       .close = "</tool_call>",
       .parse = &parse_qwen_coder,
       .style = "qwen_xml",
       .arguments_open = "<parameter=",
       .arguments_close = "</parameter>"},
      {.name = "glm",
       .open = "<tool_call>",
       .close = "</tool_call>",
       .parse = &parse_glm,
       .tags = kGlm,
       .style = "glm_xml",
       .arguments_open = "<arg_key>",
       .arguments_close = "</arg_value>"},
      {.name = "minimax",
       .open = "<minimax:tool_call>",
       .close = "</minimax:tool_call>",
       .parse = &parse_minimax,
       .style = "minimax_xml",
       .arguments_open = "<parameter name=",
       .arguments_close = "</parameter>"},
      {.name = "minimax-m3",
       .open = "]<]minimax[>[<tool_call>",
       .close = "]<]minimax[>[</tool_call>",
       .parse = &parse_minimax_m3,
       .tags = kMiniMaxM3,
       .style = kMiniMaxM3Style,
       .arguments_open = kMiniMaxM3Tag,
       .arguments_close = "]<]minimax[>[</key>",
       .is_sent_whole = true},
      {.name = "deepseek",
       .open = "<｜tool▁calls▁begin｜>",
       .close = "<｜tool▁calls▁end｜>",
       .parse = &parse_deepseek,
       .tags = kDeepSeek,
       .style = "json",
       .arguments_open = "{",
       .arguments_close = "}",
       .name_tag = kDeepSeek[0],
       .arguments_tag = kDeepSeek[1]},
      {.name = "deepseek-dsml",
       .open = "<｜DSML｜function_calls>",
       .close = "</｜DSML｜function_calls>",
       .parse = &parse_dsml,
       .style = "deepseek_xml",
       .arguments_open = "<｜DSML｜parameter name=",
       .arguments_close = "</｜DSML｜parameter>"},
      {.name = "deepseek-v4",
       .open = "<｜DSML｜tool_calls>",
       .close = "</｜DSML｜tool_calls>",
       .parse = &parse_dsml,
       .style = "deepseek_xml",
       .arguments_open = "<｜DSML｜parameter name=",
       .arguments_close = "</｜DSML｜parameter>"},
      {.name = "kimi",
       .open = "<|tool_calls_section_begin|>",
       .close = "<|tool_calls_section_end|>",
       .parse = &parse_kimi,
       .tags = kKimi,
       .style = "json",
       .arguments_open = "{",
       .arguments_close = "}",
       .name_tag = kKimi[0],
       .arguments_tag = kKimi[1]},
      {.name = "mistral",
       .open = "[TOOL_CALLS]",
       .parse = &parse_mistral,
       .tags = kMistral,
       .style = "json",
       .arguments_open = "{",
       .arguments_close = "}",
       .arguments_tag = kMistral[0]},
      {.name = "gemma",
       .open = "<|tool_call>",
       .close = "<tool_call|>",
       .parse = &parse_gemma,
       .tags = kGemma,
       .style = kGemmaStyle,
       .arguments_open = "{",
       .arguments_close = "}",
       .is_sent_whole = true},
      {.name = "gpt-oss",
       .open = " to=functions.",
       .close = "<|call|>",
       .parse = &parse_channel_call,
       .style = "json",
       .arguments_open = "{",
       .arguments_close = "}",
       .close_ends_answer = true},
      {.name = "llama",
       .parse = &parse_parameters,
       .style = "json",
       .arguments_open = "{",
       .arguments_close = "}"},
  };
  return kFormats;
}

}  // namespace moracle::serve
