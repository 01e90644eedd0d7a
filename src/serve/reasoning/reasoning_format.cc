#include "serve/reasoning/reasoning_format.h"

#include "base/text.h"
#include "serve/tools/call_cursor.h"

namespace moracle::serve {
namespace {

constexpr std::string_view kProbe = "probed reasoning";

// A conversation whose answer reasons. Some templates print reasoning only before calls.
std::string probe_messages(bool has_call) {
  const char* const call =
      R"(,"tool_calls":[{"id":"abcdef123","type":"function","function":{"name":"probed_tool","arguments":{"key":"value"}}}])";
  return str(R"([{"role":"user","content":"question"},{"role":"assistant","content":")",
             has_call ? "" : "answer", R"(","reasoning":")", kProbe, R"(","reasoning_content":")",
             kProbe, '"', has_call ? call : "", "}]");
}

const ReasoningFormat* format_around_probe(const ChatTemplate& chat) {
  for (const bool has_call : {true, false}) {
    const auto text = chat.render_json({probe_messages(has_call), "", ""}, false);
    const size_t at = text ? text->find(kProbe) : std::string::npos;
    if (at == std::string::npos) continue;
    const std::string_view before = trimmed(std::string_view(*text).substr(0, at));
    for (const ReasoningFormat& format : reasoning_formats()) {
      if (before.ends_with(trimmed(format.open))) return &format;
    }
  }
  return nullptr;
}

// A prompt opens or closes the reasoning, or its instructions name both tags.
const ReasoningFormat* format_of_prompts(const ChatTemplate& chat) {
  for (const char* is_on : {"true", "false"}) {
    const auto text =
        chat.render_json({R"([{"role":"user","content":"question"}])", "",
                          str(R"({"enable_thinking":)", is_on, R"(,"thinking":)", is_on, "}")});
    for (const ReasoningFormat& format : reasoning_formats()) {
      if (!text) continue;
      const std::string_view end = trimmed(*text);
      const bool names_both = text->find(format.open) != std::string::npos &&
                              text->find(format.close) != std::string::npos;
      if (end.ends_with(trimmed(format.open)) || end.ends_with(format.close) || names_both)
        return &format;
    }
  }
  return nullptr;
}

}  // namespace

std::span<const ReasoningFormat> reasoning_formats() {
  using Tags = std::string_view;
  static constexpr Tags kThink[] = {"<think>", "</think>"};
  static constexpr Tags kMiniMax[] = {"<mm:think>", "</mm:think>"};
  static constexpr Tags kMistral[] = {"[THINK]", "[/THINK]"};
  static constexpr Tags kGemma[] = {"<|channel>", "<channel|>"};
  static constexpr Tags kChannels[] = {"<|start|>", "<|channel|>",   "<|message|>", "<|end|>",
                                       "<|call|>",  "<|constrain|>", "<|return|>"};
  static constexpr ReasoningFormat kFormats[] = {
      {"think", "<think>", "</think>", "</think>", false, kThink},
      {"minimax-m3", "<mm:think>", "</mm:think>", "</mm:think>", false, kMiniMax},
      {"mistral", "[THINK]", "[/THINK]", "[/THINK]", false, kMistral},
      {"gemma", "<|channel>thought\n", "<channel|>", "<channel|>", false, kGemma},
      {"gpt-oss", "<|channel|>analysis<|message|>", "<|end|>",
       "<|end|><|start|>assistant<|channel|>final<|message|>", true, kChannels},
  };
  return kFormats;
}

const ReasoningFormat* find_reasoning(const ChatTemplate& chat) {
  const ReasoningFormat* const format = format_around_probe(chat);
  return format ? format : format_of_prompts(chat);
}

bool opens_reasoning(const ReasoningFormat& format, std::string_view prompt) {
  return trimmed(prompt).ends_with(trimmed(format.open));
}

}  // namespace moracle::serve
