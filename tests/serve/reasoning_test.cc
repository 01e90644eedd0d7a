// Tests the detection of reasoning from templates, and its parsers.
#include <gtest/gtest.h>

#include "serve/answers/answer_reader.h"
#include "serve/reasoning/reasoning_budget.h"
#include "support/must.h"

namespace moracle::serve::reasoning_test {
namespace {

using testing::must;
using Kind = AnswerPart::Kind;

const ReasoningFormat* format_named(std::string_view name) {
  for (const ReasoningFormat& each : reasoning_formats()) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

std::string name_in(const char* text) {
  const auto* const format = find_reasoning(must(ChatTemplate::parse(text, "test")));
  return format ? std::string(format->name) : "";
}

OfferedTools one_tool() {
  const nlohmann::json tools =
      nlohmann::json::parse(R"([{"type": "function", "function": {"name": "now"}}])");
  const std::string file;
  return must(OfferedTools::read(JsonField(tools, file)));
}

// Reads a text in chunks of `size` bytes. Returns "kind:text" of each part.
std::vector<std::string> parts(AnswerForm form, std::string_view text, size_t size,
                               const char* tools = "hermes") {
  for (const ToolFormat& each : tool_formats()) {
    if (each.name == tools) form.tools = std::make_shared<const ToolUse>(ToolUse{each, one_tool()});
  }
  AnswerReader reader(form);
  std::vector<std::string> all;
  const auto add = [&](const std::vector<AnswerPiece>& pieces) {
    for (const AnswerPiece& piece : pieces) {
      const char* const kind = piece.kind == Kind::kText   ? "text:"
                               : piece.kind == Kind::kCall ? "call:"
                                                           : "reasoning:";
      if (piece.begins) all.push_back(kind + piece.name);
      all.back() += piece.text;
    }
  };
  for (size_t at = 0; at < text.size(); at += size) add(reader.push(text.substr(at, size)));
  std::vector<AnswerPiece> rest;
  reader.finish(true, rest);
  add(rest);
  return all;
}

void expect_parts(const AnswerForm& form, std::string_view text,
                  const std::vector<std::string>& expected) {
  for (size_t size = 1; size <= text.size(); ++size)
    ASSERT_EQ(parts(form, text, size), expected) << text << " in chunks of " << size;
}

TEST(ReasoningFormat, IsDetectedFromTemplate) {
  EXPECT_EQ(name_in("{% for m in messages %}{{ m.content }}{% endfor %}"), "");
  EXPECT_EQ(
      name_in("{% for m in messages %}{% if m.reasoning_content %}<think>\n"
              "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}{% endfor %}"),
      "think");
  // As in GPT-OSS: only before calls, under another name.
  EXPECT_EQ(name_in("{% for m in messages %}{% if m.tool_calls and m.thinking %}<|start|>assistant"
                    "<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}{% endfor %}"),
            "gpt-oss");
  // As in Gemma.
  EXPECT_EQ(name_in("{% for m in messages %}{% if m.tool_calls %}{{ '<|channel>thought\n' + "
                    "m.get('reasoning') + '\n<channel|>' }}{% endif %}{% endfor %}"),
            "gemma");
  // As in DeepSeek: the history has no reasoning, the prompt opens it.
  EXPECT_EQ(name_in("{% for m in messages %}{{ m.content }}{% endfor %}"
                    "{% if add_generation_prompt %}{{ '<think>\n' if thinking }}{% endif %}"),
            "think");
  EXPECT_EQ(name_in("{% for m in messages %}{{ m.content }}{% endfor %}"
                    "{% if not enable_thinking %}[THINK]\n[/THINK]{% endif %}"),
            "mistral");
}

TEST(ReasoningFormat, IsDetectedFromInstructions) {
  EXPECT_EQ(name_in("Think first: [THINK]thoughts[/THINK]. {% for m in messages %}{{ m.content }}"
                    "{% endfor %}"),
            "mistral");
}

TEST(ReasoningFormat, PromptOpensReasoning) {
  const ReasoningFormat& think = *format_named("think");
  EXPECT_TRUE(opens_reasoning(think, "assistant\n<think>\n"));
  EXPECT_FALSE(opens_reasoning(think, "assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(opens_reasoning(think, "assistant\n"));
}

TEST(AnswerReader, SplitsReasoningForAnyChunkSize) {
  const AnswerForm form{.reasoning = format_named("think")};
  expect_parts(form, "\n<think>\nhm, 1 < 2 \n\n b\n</think>\n\nFine. ",
               {"reasoning:hm, 1 < 2 \n\n b", "text:Fine. "});
  expect_parts(form, "Fine <think>not</think>", {"text:Fine <think>not</think>"});
  expect_parts(form, "<thin", {"text:<thin"});
  expect_parts(form, "<think></think>a", {"text:a"});
  expect_parts(form, "<think>a</thin", {"reasoning:a</thin"});
  expect_parts(form, "<think>\n", {});
  const AnswerForm open{.reasoning = format_named("think"), .is_reasoning = true};
  expect_parts(open, "hm\n</think>\n\nFine.", {"reasoning:hm", "text:Fine."});
  expect_parts(open, "hm</think><tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
               {"reasoning:hm", "call:now{}"});
  const AnswerForm gemma{.reasoning = format_named("gemma")};
  expect_parts(gemma, "<|channel>thought\nhm\n<channel|>Fine.", {"reasoning:hm", "text:Fine."});
}

TEST(AnswerReader, SplitsChannelsForAnyChunkSize) {
  const AnswerForm form{.reasoning = format_named("gpt-oss")};
  expect_parts(form,
               "<|channel|>analysis<|message|>hm < 2<|end|><|start|>assistant<|channel|>final"
               "<|message|>Fine.<|return|>",
               {"reasoning:hm < 2", "text:Fine."});
  expect_parts(form,
               "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary"
               "<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.now "
               "<|constrain|>json<|message|>{\"a\": 1}<|call|>",
               {"reasoning:hm", "text:I look.", "call:now{\"a\": 1}"});
  expect_parts(form, " to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
               {"call:now{}"});
  expect_parts(form, "<|channel|>commentary to=functions.other<|message|>{}<|call|>", {"text:{}"});
  expect_parts(form, "no channel", {"text:no channel"});
  expect_parts(form, "<|channel|>analysis<|message|>cut <|en", {"reasoning:cut <|en"});
}

// Adds a token and its text until the budget forces, and returns their number.
int64_t tokens_until_forced(ReasoningBudget& budget, std::vector<const char*> texts) {
  for (size_t i = 0; i < texts.size(); ++i) {
    if (budget.forces()) return static_cast<int64_t>(i);
    budget.add(5, texts[i]);
  }
  return budget.forces() ? static_cast<int64_t>(texts.size()) : -1;
}

TEST(ReasoningBudget, ForcesClosingTokensAtBudget) {
  const ReasoningLimit limit{"<think>", "</think>", {7, 8}, false, 3};
  ReasoningBudget budget(limit);
  EXPECT_EQ(tokens_until_forced(budget, {"<th", "ink>", "a", "b", "c", "d"}), 5);
  EXPECT_EQ(budget.forced_id(), 7);
  budget.add(7, "");
  EXPECT_EQ(budget.forced_id(), 8);
  budget.add(8, "");
  EXPECT_FALSE(budget.forces());
  EXPECT_EQ(tokens_until_forced(budget, {"<think>", "a", "b", "c", "d"}), -1);
}

TEST(ReasoningBudget, IgnoresClosedReasoningAndOtherText) {
  ReasoningLimit limit{"<think>", "</think>", {7}, true, 3};
  ReasoningBudget closed(limit);
  EXPECT_EQ(tokens_until_forced(closed, {"a", "</thi", "nk>", "b", "c", "d"}), -1);
  limit.is_open = false;
  ReasoningBudget plain(limit);
  EXPECT_EQ(tokens_until_forced(plain, {"a", "<think>", "b", "c", "d", "e"}), -1);
  limit.is_open = true;
  limit.max_tokens = 0;
  EXPECT_TRUE(ReasoningBudget(limit).forces());
}

}  // namespace
}  // namespace moracle::serve::reasoning_test
