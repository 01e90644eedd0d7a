// Parses calls that transformers rendered with each template of tests/golden/chat/tools.json, and
// texts that only look like calls.
#include "serve/tools/tool_call_parser.h"
#include "paths.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "serve/tools/channel_parser.h"
#include "serve/tools/tool_dialect.h"
#include "support/must.h"

namespace moracle::serve::tool_call_parser_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::must;

Json read_golden() {
  std::ifstream file(testing::golden_dir() + "/chat/tools.json");
  return Json::parse(file, nullptr, false);
}

OfferedTools offered() {
  const nlohmann::json tools = nlohmann::json::parse(R"([
      {"type": "function", "function": {"name": "get_weather", "parameters": {"properties": {
          "town": {"type": "string"}, "days": {"type": "integer"}}}}},
      {"type": "function", "function": {"name": "now"}}])");
  const std::string file;
  return must(OfferedTools::read(JsonField(tools, file)));
}

const ToolFormat& format(std::string_view name) {
  for (const ToolFormat& each : tool_formats()) {
    if (each.name == name) return each;
  }
  ADD_FAILURE() << name;
  return tool_formats()[0];
}

// Parses a text in chunks of `size` bytes.
ToolCallParser::Delta read(const ToolFormat& of, std::string_view text, size_t size,
                           bool is_whole = true) {
  const OfferedTools tools = offered();
  ToolCallParser reader(of, tools);
  ToolCallParser::Delta all;
  const auto add = [&](ToolCallParser::Delta delta) {
    all.text += delta.text;
    for (ToolCall& call : delta.calls) all.calls.push_back(std::move(call));
  };
  for (size_t at = 0; at < text.size(); at += size) add(reader.push(text.substr(at, size)));
  add(reader.finish(is_whole));
  EXPECT_EQ(reader.has_calls(), !all.calls.empty());
  return all;
}

TEST(ToolDialect, IsDetectedFromTemplate) {
  const Json golden = read_golden();
  ASSERT_TRUE(golden.is_object());
  for (const auto& [name, entry] : golden["templates"].items()) {
    SCOPED_TRACE(name);
    const ToolDialect dialect = find_dialect(must(ChatTemplate::parse(entry["text"], name)));
    EXPECT_EQ(dialect.takes_tools, name != "plain");
    EXPECT_EQ(dialect.format ? dialect.format->name : "", entry["format"].get<std::string>());
    EXPECT_EQ(dialect.arguments_as_text, name == "deepseek");
  }
  const std::string none = golden["templates"]["deepseek"]["text"];
  EXPECT_FALSE(find_dialect(must(ChatTemplate::parse(none, "deepseek"))).empty_content);
  const std::string prints =
      "{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
      "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}";
  EXPECT_TRUE(find_dialect(must(ChatTemplate::parse(prints, "prints"))).empty_content);
}

TEST(ToolCallParser, ParsesCallsOfEveryTemplateForAnyChunkSize) {
  const Json golden = read_golden();
  int num_read = 0;
  for (const Json& test : golden["cases"]) {
    const auto name = test["template"].get<std::string>();
    const auto of = golden["templates"][name]["format"].get<std::string>();
    if (of.empty()) continue;
    SCOPED_TRACE(name);
    const auto whole = test["expected"].get<std::string>();
    const std::string begin = "<|turn|>assistant\n";
    const size_t at = whole.find(begin) + begin.size();
    const std::string turn = whole.substr(at, whole.find("<|end|>", at) - at);
    const Json& expected = test["messages"][1]["tool_calls"];
    for (size_t size = 1; size <= turn.size(); ++size) {
      const ToolCallParser::Delta delta = read(format(of), turn, size);
      ASSERT_EQ(delta.calls.size(), 2u) << size;
      EXPECT_EQ(delta.text, "");
      for (size_t i = 0; i < 2; ++i) {
        const Json& function = expected[i]["function"];
        const Json& arguments = function["arguments"];
        EXPECT_EQ(delta.calls[i].name, function["name"].get<std::string>());
        EXPECT_EQ(Json::parse(delta.calls[i].arguments),
                  arguments.is_string() ? Json::parse(arguments.get<std::string>()) : arguments);
        if (of == "kimi" || name == "mistral")
          EXPECT_EQ(delta.calls[i].id, expected[i]["id"].get<std::string>());
        else
          EXPECT_EQ(delta.calls[i].id.size(), 9u);
      }
      EXPECT_NE(delta.calls[0].id, delta.calls[1].id);
    }
    ++num_read;
  }
  EXPECT_EQ(num_read, 26);
}

TEST(ToolCallParser, KeepsTextAroundCalls) {
  const std::string text =
      " I look.\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n"
      "<tool_call>{\"name\": \"now\", \"arguments\": {\"b\": 1, \"a\": 2}}</tool_call>\nDone. ";
  for (size_t size = 1; size <= text.size(); ++size) {
    const ToolCallParser::Delta delta = read(format("hermes"), text, size);
    EXPECT_EQ(delta.text, " I look.\nDone.");
    ASSERT_EQ(delta.calls.size(), 2u);
    EXPECT_EQ(delta.calls[1].arguments, R"({"b":1,"a":2})");
  }
}

TEST(ToolCallParser, KeepsTextWithoutValidCall) {
  const std::pair<const char*, std::string> cases[] = {
      {"hermes", " <tool_cal <tool_call </tool_call> \n"},
      {"hermes", "a <tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>\n b \n"},
      {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": 5}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"now\"}</tool_call>"},
      {"hermes", "<tool_call>" + std::string(1000, '[') + "</tool_call>"},
      {"hermes", "<tool_call>[{\"name\": \"now\", \"arguments\": {}}]</tool_call>"},
      {"qwen-coder", "<tool_call><function=now><parameter=a>5</function></tool_call>"},
      {"qwen-coder", "<tool_call><function=now></function> more</tool_call>"},
      {"glm", "<tool_call></tool_call> <tool_call>now<arg_key>a</arg_key></tool_call>"},
      {"minimax", "<minimax:tool_call></minimax:tool_call>"},
      {"deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁calls▁end｜>"},
      {"kimi", "<|tool_calls_section_begin|>now<|tool_calls_section_end|>"},
      {"mistral", "[TOOL_CALLS] []"},
      {"mistral", "[TOOL_CALLS]now[ARGS]{} and more"},
      {"mistral", "[TOOL_CALLS]now[ARGS]"},
      {"llama", "{\"name\": \"now\", \"parameters\": {}} is a call"},
      {"llama", "{\"a\": 1}"},
      {"llama", "text {\"name\": \"now\", \"parameters\": {}}"},
      {"llama", " \n"},
  };
  for (const auto& [name, text] : cases) {
    for (const size_t size : {size_t{1}, size_t{3}, text.size()}) {
      const ToolCallParser::Delta delta = read(format(name), text, size);
      EXPECT_EQ(delta.text, text) << name;
      EXPECT_TRUE(delta.calls.empty()) << text;
    }
  }
}

TEST(ToolCallParser, AcceptsUnclosedBlockOnlyAtEndOfAnswer) {
  const std::string text = "<tool_call>{\"name\": \"now\", \"arguments\": {}}";
  EXPECT_EQ(read(format("hermes"), text, 4, true).calls.size(), 1u);
  const ToolCallParser::Delta cut = read(format("hermes"), text, 4, false);
  EXPECT_TRUE(cut.calls.empty());
  EXPECT_EQ(cut.text, text);
}

TEST(ToolCallParser, SchemaDeterminesArgumentTypes) {
  const ToolCallParser::Delta delta =
      read(format("qwen-coder"),
           "<tool_call>\n<function=get_weather>\n<parameter=town>\n5\n</parameter>\n"
           "<parameter=days>\n5\n</parameter>\n<parameter=other>\nfive\n</parameter>\n"
           "</function>\n</tool_call>",
           7);
  ASSERT_EQ(delta.calls.size(), 1u);
  EXPECT_EQ(delta.calls[0].arguments, R"({"town":"5","days":5,"other":"five"})");
}

// Reads a text in chunks with a parser that streams. Returns "name:arguments" of each call.
std::vector<std::string> stream(const ToolFormat& of, std::string_view text, size_t size,
                                bool is_whole = true) {
  const OfferedTools tools = offered();
  ToolCallParser reader(of, tools, true);
  std::vector<std::string> calls;
  std::string shown;
  const auto add = [&](const ToolCallParser::Delta& delta) {
    for (const AnswerPiece& piece : delta.pieces) {
      if (piece.kind == AnswerPart::Kind::kText) {
        shown += piece.text;
        continue;
      }
      EXPECT_EQ(piece.begins, !piece.id.empty());
      if (piece.begins) calls.push_back(piece.name + ":");
      calls.back() += piece.text;
    }
  };
  for (size_t at = 0; at < text.size(); at += size) add(reader.push(text.substr(at, size)));
  add(reader.finish(is_whole));
  EXPECT_EQ(reader.has_calls(), !calls.empty());
  if (calls.empty()) {
    EXPECT_EQ(shown, text);
  }
  return calls;
}

TEST(ToolCallParser, StreamsCallsOfEveryTemplateForAnyChunkSize) {
  const Json golden = read_golden();
  int num_read = 0;
  for (const Json& test : golden["cases"]) {
    const auto name = test["template"].get<std::string>();
    const auto of = golden["templates"][name]["format"].get<std::string>();
    if (of.empty()) continue;
    SCOPED_TRACE(name);
    const auto whole = test["expected"].get<std::string>();
    const std::string begin = "<|turn|>assistant\n";
    const size_t at = whole.find(begin) + begin.size();
    const std::string turn = whole.substr(at, whole.find("<|end|>", at) - at);
    const ToolCallParser::Delta expected = read(format(of), turn, turn.size());
    for (size_t size = 1; size <= turn.size(); ++size) {
      const std::vector<std::string> calls = stream(format(of), turn, size);
      ASSERT_EQ(calls.size(), expected.calls.size()) << size;
      for (size_t i = 0; i < calls.size(); ++i) {
        const ToolCall& call = expected.calls[i];
        ASSERT_EQ(calls[i].substr(0, call.name.size() + 1), call.name + ":");
        EXPECT_EQ(Json::parse(calls[i].substr(call.name.size() + 1)), Json::parse(call.arguments));
      }
    }
    ++num_read;
  }
  EXPECT_EQ(num_read, 26);
}

TEST(ToolCallParser, StreamsArgumentsBeforeTheirEnd) {
  using Calls = std::vector<std::string>;
  const std::pair<const char*, std::string> cases[] = {
      {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"}{\\\"\", \"b\": ["},
      {"kimi",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>"
       "{\"a\": \"}{\\\"\", \"b\": ["},
      {"mistral", "[TOOL_CALLS]now[ARGS]{\"a\": \"}{\\\"\", \"b\": ["},
  };
  for (const auto& [name, text] : cases) {
    for (const size_t size : {size_t{1}, size_t{7}, text.size()})
      EXPECT_EQ(stream(format(name), text, size, false), Calls{"now:{\"a\": \"}{\\\"\", \"b\": ["})
          << name;
  }
  EXPECT_EQ(
      stream(format("qwen-coder"),
             "<tool_call>\n<function=get_weather>\n<parameter=town>\nUlm\n</parameter>\n<para", 3,
             false),
      Calls{"get_weather:{\"town\":\"Ulm\""});
  EXPECT_EQ(stream(format("glm"), "<tool_call>now</tool_call>", 3), Calls{"now:{}"});
  EXPECT_EQ(stream(format("hermes"),
                   "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"now\"}"
                   "</tool_call>",
                   3),
            Calls{"now:{\"a\":1}"});
  EXPECT_EQ(stream(format("hermes"),
                   "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>", 3),
            Calls{});
}

// Text that looks like a call of another format is no head.
TEST(ToolCallParser, TextInsideArgumentsIsNoCall) {
  const std::string inner = R"({"name": "now", "arguments": {}})";
  const std::string tag = "]<]minimax[>[<";
  for (const size_t size : {size_t{1}, size_t{9}}) {
    EXPECT_EQ(
        stream(format("gemma"),
               "<|tool_call>call:get_weather{town:<|\"|>" + inner + "<|\"|>}<tool_call|>", size)
            .size(),
        1u);
    const std::vector<std::string> calls =
        stream(format("minimax-m3"),
               tag + "tool_call>\n" + tag + "invoke name=\"get_weather\">" + tag + "town>" + inner +
                   tag + "/town>" + tag + "other>" + tag + "item>5" + tag + "/item>" + tag +
                   "item>" + tag + "a>x" + tag + "/a>" + tag + "/item>" + tag + "/other>" + tag +
                   "/invoke>\n" + tag + "/tool_call>",
               size);
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(Json::parse(calls[0].substr(calls[0].find(':') + 1)),
              Json({{"town", inner}, {"other", {5, {{"a", "x"}}}}}));
  }
}

TEST(ToolCallParser, LlamaCallsNeedNoSeparator) {
  for (const char* between : {"", ";", " ; "}) {
    const std::string call = R"({"name": "now", "parameters": {"a": 1}})";
    EXPECT_EQ(read(format("llama"), call + between + call, 3).calls.size(), 2u) << between;
    EXPECT_EQ(stream(format("llama"), call + between + call, 3).size(), 2u) << between;
  }
}

TEST(ToolCallParser, ParsesDsmlGemmaAndChannels) {
  const std::pair<const char*, std::string> cases[] = {
      {"deepseek-dsml",
       "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter "
       "name=\"town\" "
       "string=\"true\">5</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">"
       "5</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"},
      {"gemma", "<|tool_call>call:get_weather{days:5,town:<|\"|>5<|\"|>}<tool_call|>"},
      {"gpt-oss",
       " to=functions.get_weather<|channel|>commentary json<|message|>{\"town\": \"5\", \"days\": "
       "5}<|call|>"},
  };
  for (const auto& [name, text] : cases) {
    for (const size_t size : {size_t{1}, size_t{5}, text.size()}) {
      const ToolCallParser::Delta delta = read(format(name), text, size);
      ASSERT_EQ(delta.calls.size(), 1u) << name;
      EXPECT_EQ(nlohmann::json::parse(delta.calls[0].arguments),
                nlohmann::json::parse(R"({"town":"5","days":5})"))
          << name;
    }
  }
  const ToolCallParser::Delta nested =
      read(format("gemma"),
           "<|tool_call>call:now{a:{b:[1,<|\"|>x, }]<|\"|>,true],c:null},d:{}}<tool_call|>", 4);
  ASSERT_EQ(nested.calls.size(), 1u);
  EXPECT_EQ(nested.calls[0].arguments, R"({"a":{"b":[1,"x, }]",true],"c":null},"d":{}})");
  std::string deep = "<|tool_call>call:now{a:";
  for (int i = 0; i < 5000; ++i) deep += '[';
  EXPECT_TRUE(read(format("gemma"), deep + "<tool_call|>", deep.size()).calls.empty());
}

TEST(ToolCallParser, LongBlocksTakeLinearTime) {
  const std::string text = "<tool_call>" + std::string(2'000'000, 'a');
  EXPECT_EQ(read(format("hermes"), text, 2, false).text, text);
  // Heads that never end, and JSON that looks like heads.
  const std::string long_name(1'000'000, 'a');
  EXPECT_TRUE(stream(format("qwen-coder"), "<tool_call><function=" + long_name, 3, false).empty());
  EXPECT_TRUE(stream(format("glm"), "<tool_call>" + long_name, 3, false).empty());
  std::string heads = "<tool_call>";
  for (int i = 0; i < 60'000; ++i) heads += "\"arguments\":{";
  EXPECT_TRUE(stream(format("hermes"), heads, 5, false).empty());
  ChannelParser channels(nullptr);
  for (int i = 0; i < 1'000'000; ++i) EXPECT_TRUE(channels.push("aa").empty());
  const std::string value(1'000'000, 'a');
  EXPECT_EQ(
      stream(format("qwen-coder"), "<tool_call><function=now><parameter=a>" + value, 3, false),
      std::vector<std::string>{"now:{"});
}

}  // namespace
}  // namespace moracle::serve::tool_call_parser_test
