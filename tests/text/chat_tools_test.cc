// Compares chats that have tools with transformers (tests/golden/chat/tools.json, written by
// tools/make_tool_chat_golden.py), and tests errors of conversations in JSON.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "moracle/text.h"
#include "paths.h"
#include "support/must.h"

namespace moracle::chat_tools_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::must;

const std::string kTurns = R"([{"role": "user", "content": "Hi"}])";

TEST(ChatTools, MatchTransformers) {
  std::ifstream file(testing::golden_dir() + "/chat/tools.json");
  const Json golden = Json::parse(file, nullptr, false);
  ASSERT_TRUE(golden.is_object());
  const auto tokens = golden["special_tokens"].get<std::map<std::string, std::string>>();
  for (const Json& test : golden["cases"]) {
    const auto name = test["template"].get<std::string>();
    SCOPED_TRACE(name);
    const auto chat = ChatTemplate::parse(golden["templates"][name]["text"], name, tokens);
    ASSERT_TRUE(chat.ok()) << chat.error().to_string();
    const Json& tools = test["tools"];
    const auto text = chat->render_json(
        {test["messages"].dump(), tools.is_null() ? "" : tools.dump(), test["variables"].dump()});
    ASSERT_TRUE(text.ok()) << text.error().to_string();
    EXPECT_EQ(*text, test["expected"].get<std::string>());
  }
  EXPECT_GE(golden["cases"].size(), 24u);
}

TEST(ChatTools, JsonKeepsTypesAndOrder) {
  const ChatTemplate chat = must(ChatTemplate::parse(
      "{{ x }} {{ messages[0].content is none }} {{ tools is none }} {{ bos }}", "origin"));
  EXPECT_EQ(must(chat.render_json({R"([{"role": "user", "content": null}])", "",
                                   R"({"x": {"b": [1, 1.0, true], "a": -2}, "bos": "<s>"})"})),
            "{'b': [1, 1.0, True], 'a': -2} True True <s>");
}

// Expected texts: transformers 5.23 for the same messages.
TEST(ChatTools, ReasoningIsAvailableUnderBothTemplateNames) {
  const ChatTemplate chat = must(ChatTemplate::parse("{{ messages[0] }}", "origin"));
  const auto shown = [&](const std::string& message) {
    return must(chat.render_json({"[" + message + "]", "", ""}));
  };
  EXPECT_EQ(shown(R"({"role": "a", "reasoning_content": "r"})"),
            "{'thinking': 'r', 'role': 'a', 'reasoning_content': 'r'}");
  EXPECT_EQ(shown(R"({"role": "a", "reasoning": "r"})"),
            "{'thinking': 'r', 'role': 'a', 'reasoning': 'r', 'reasoning_content': 'r'}");
  EXPECT_EQ(shown(R"({"role": "a", "thinking": "t", "reasoning_content": null})"),
            "{'thinking': 't', 'role': 'a', 'reasoning_content': 't'}");
  EXPECT_EQ(shown(R"({"role": "a", "thinking": "t", "reasoning_content": "r"})"),
            "{'thinking': 't', 'role': 'a', 'reasoning_content': 'r'}");
  EXPECT_EQ(shown(R"({"role": "a", "thinking": null})"), "{'role': 'a', 'thinking': None}");
}

TEST(ChatTools, RejectsInvalidJsonByName) {
  const ChatTemplate chat = must(ChatTemplate::parse("{{ messages }}", "origin"));
  const auto place = [&](const ChatConversation& conversation) {
    const auto text = chat.render_json(conversation);
    return text ? *text : text.error().place;
  };
  EXPECT_EQ(place({"{}", "", ""}), "messages");
  EXPECT_EQ(place({"[", "", ""}), "messages");
  EXPECT_EQ(place({"[\"\xff\"]", "", ""}), "messages");
  EXPECT_EQ(place({std::string(100, '[') + std::string(100, ']'), "", ""}), "messages");
  EXPECT_EQ(place({kTurns, "{}", ""}), "tools");
  EXPECT_EQ(place({kTurns, "", "[]"}), "variables");
  const auto large = chat.render_json({"[18446744073709551615]", "", ""});
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.error().fact, "the integer 18446744073709551615, beyond 64 bits");
}

class ChatToolFiles : public ::testing::Test {
 protected:
  ChatToolFiles()
      : folder_((std::filesystem::temp_directory_path() /
                 ("chat_tools_test_" + std::to_string(getpid())))
                    .string()) {
    std::filesystem::create_directories(folder_ + "/additional_chat_templates");
  }
  ~ChatToolFiles() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(folder_ + "/" + file, std::ios::binary) << text;
  }
  const std::string folder_;
};

TEST_F(ChatToolFiles, TemplateNamedToolUseServesTools) {
  write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"},
                                                       {"name": "default", "template": "d"}]})");
  ChatTemplate chat = must(ChatTemplate::open(folder_));
  EXPECT_EQ(must(chat.render_json({kTurns, "[]", ""})), "t");
  EXPECT_EQ(must(chat.render_json({kTurns, "", ""})), "d");
  write("chat_template.jinja", "file");
  chat = must(ChatTemplate::open(folder_));
  EXPECT_EQ(must(chat.render_json({kTurns, "[]", ""})), "file");
  write("additional_chat_templates/tool_use.jinja", "tools file");
  chat = must(ChatTemplate::open(folder_));
  EXPECT_EQ(must(chat.render_json({kTurns, "[]", ""})), "tools file");
}

TEST_F(ChatToolFiles, BrokenToolTemplateDoesNotAffectOtherChats) {
  write("chat_template.jinja", "good");
  write("additional_chat_templates/tool_use.jinja", "{% if %}");
  const ChatTemplate chat = must(ChatTemplate::open(folder_));
  EXPECT_EQ(must(chat.render_json({kTurns, "", ""})), "good");
  const auto text = chat.render_json({kTurns, "[]", ""});
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().file, folder_ + "/additional_chat_templates/tool_use.jinja");
}

}  // namespace
}  // namespace moracle::chat_tools_test
