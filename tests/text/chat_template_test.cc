// Compares the chat template renderer with transformers on the same templates
// (tests/golden/chat/cases.json, written by tools/make_chat_golden.py), and tests its errors.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "moracle/model.h"
#include "paths.h"

namespace moracle::chat_template_test {
namespace {

using Json = nlohmann::json;
using Messages = std::vector<ChatMessage>;

const Messages kTurns = {{"system", "Rules"}, {"user", "Hi"}, {"assistant", "Hello"}};

Result<std::string> render(const std::string& text, const Messages& messages = kTurns,
                           bool prompt = true) {
  auto chat = ChatTemplate::parse(text, "origin.jinja", {{"bos_token", "<s>"}});
  if (!chat) return std::move(chat).error();
  return chat->render(messages, prompt);
}

// Error of a template that must be rejected by the parser.
Error refusal(const std::string& text) {
  auto chat = ChatTemplate::parse(text, "origin.jinja");
  EXPECT_FALSE(chat.ok()) << text;
  return chat ? Error{} : std::move(chat).error();
}

// A temporary folder.
class Folder {
 public:
  Folder() {
    static int count = 0;
    const std::string name =
        "chat_template_test_" + std::to_string(getpid()) + "_" + std::to_string(++count);
    path_ = (std::filesystem::temp_directory_path() / name).string();
    std::filesystem::create_directory(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(path_ + "/" + file, std::ios::binary) << text;
  }

 private:
  std::string path_;
};

TEST(ChatTemplate, MatchesTransformers) {
  std::ifstream file(testing::golden_dir() + "/chat/cases.json");
  const Json golden = Json::parse(file, nullptr, false);
  ASSERT_TRUE(golden.is_object());
  const auto tokens = golden["special_tokens"].get<std::map<std::string, std::string>>();
  size_t same = 0;
  for (const Json& test : golden["cases"]) {
    const auto name = test["template"].get<std::string>();
    const auto text = golden["templates"][name].get<std::string>();
    const auto conversation = test["messages"].get<std::string>();
    Messages messages;
    for (const Json& message : golden["conversations"][conversation]) {
      messages.push_back({message["role"], message["content"]});
    }
    SCOPED_TRACE(name + ", " + conversation + ": " + text.substr(0, 200));
    auto chat = ChatTemplate::parse(text, name, tokens);
    Result<std::string> rendered("");
    if (chat) {
      rendered = chat->render(messages, test["add_generation_prompt"].get<bool>());
    } else {
      rendered = chat.error();
    }
    if (test.contains("fails")) {
      EXPECT_FALSE(rendered.ok()) << *rendered;
      if (!rendered) {
        EXPECT_EQ(rendered.error().file, name);
      }
    } else {
      ASSERT_TRUE(rendered.ok()) << rendered.error().to_string();
      EXPECT_EQ(*rendered, test["expected"].get<std::string>());
      ++same;
    }
  }
  EXPECT_GT(same, 200u);
}

TEST(ChatTemplate, PrefersTemplateFileOverConfig) {
  const Folder folder;
  folder.write("tokenizer_config.json",
               R"({"chat_template": "config", "bos_token": {"content": "<b>"}, "eos_token": null,
                   "extra_special_tokens": {"image_token": "<img>"}, "pad_token": "<p>"})");
  auto chat = ChatTemplate::open(folder.path());
  ASSERT_TRUE(chat.ok()) << chat.error().to_string();
  EXPECT_EQ(*chat->render({}), "config");
  folder.write("chat_template.jinja",
               "{{ bos_token }}{{ eos_token is defined }}{{ image_token }}{{ pad_token }}\n");
  chat = ChatTemplate::open(folder.path());
  ASSERT_TRUE(chat.ok()) << chat.error().to_string();
  EXPECT_EQ(*chat->render({}), "<b>False<img><p>");
}

TEST(ChatTemplate, UsesDefaultOfSeveralTemplates) {
  const Folder folder;
  folder.write("tokenizer_config.json",
               R"({"chat_template": [{"name": "tool_use", "template": "t"},
                                     {"name": "default", "template": "d"}]})");
  auto chat = ChatTemplate::open(folder.path());
  ASSERT_TRUE(chat.ok()) << chat.error().to_string();
  EXPECT_EQ(*chat->render({}), "d");
}

TEST(ChatTemplate, NamesDefectiveFile) {
  const Folder folder;
  EXPECT_FALSE(ChatTemplate::open(folder.path()).ok());
  for (const char* config :
       {"{", "[]", "{}", R"({"chat_template": 5})", R"({"chat_template": null})",
        R"({"chat_template": [{"name": "a", "template": "b"}]})", R"({"chat_template": [5]})",
        R"({"chat_template": [{"name": 1}]})"}) {
    folder.write("tokenizer_config.json", config);
    auto chat = ChatTemplate::open(folder.path());
    ASSERT_FALSE(chat.ok()) << config;
    EXPECT_EQ(chat.error().kind, ErrorKind::kBadFile) << config;
    EXPECT_EQ(chat.error().file, folder.path() + "/tokenizer_config.json");
  }
  folder.write("chat_template.jinja", "{% if %}");
  folder.write("tokenizer_config.json", "{}");
  auto chat = ChatTemplate::open(folder.path());
  ASSERT_FALSE(chat.ok());
  EXPECT_EQ(chat.error().file, folder.path() + "/chat_template.jinja");
  folder.write("chat_template.jinja", "\xFF");
  EXPECT_EQ(ChatTemplate::open(folder.path()).error().need, "UTF-8");
}

TEST(ChatTemplate, ReportsExceptionOfTemplate) {
  const auto text = render("first\n{{ raise_exception('no ' ~ messages[0].role) }}");
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(text.error().file, "origin.jinja");
  EXPECT_EQ(text.error().place, "line 2");
  EXPECT_EQ(text.error().fact, "no system");
}

TEST(ChatTemplate, ReportsUndefinedName) {
  const auto text = render("\n\n{{ x.y }}");
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().kind, ErrorKind::kBadFile);
  EXPECT_EQ(text.error().place, "line 3");
  EXPECT_EQ(text.error().fact, "'x' is undefined");
}

TEST(ChatTemplate, RejectsUnsupportedSyntaxByName) {
  const std::pair<const char*, const char*> kCases[] = {
      {"{% import 'a' as b %}", "'{% import %}'"},
      {"{% include 'a' %}", "'{% include %}'"},
      {"{% from 'a' import b %}", "'{% from %}'"},
      {"{% extends 'a' %}", "'{% extends %}'"},
      {"{% block a %}{% endblock %}", "'{% block %}'"},
      {"{% autoescape true %}{% endautoescape %}", "'{% autoescape %}'"},
      {"{% do x %}", "'{% do %}'"},
      {"{% for x in y recursive %}{% endfor %}", "'{% for ... recursive %}'"},
      {"{{ x|urlize }}", "the filter 'urlize'"},
      {"{% if false %}{{ x|groupby('a') }}{% endif %}", "the filter 'groupby'"},
      {"{{ x is sameas y }}", "the test 'sameas'"},
      {"{{ x.zfill(3) }}", "the method '.zfill()'"},
      {"{{ cycler(1) }}", "the function 'cycler()'"},
      {"{{ x[1:2, 3] }}", "a subscript with a ','"},
      {"{% generation %}{{ varargs }}{% endgeneration %}",
       "'varargs' or 'kwargs' in '{% generation %}'"},
      {"{{ '\\N{DASH}' }}", "a '\\N{...}' escape"},
      {"{{ é }}", "the character 'é' outside of strings"},
      {"{{ 99999999999999999999 }}", "the integer 99999999999999999999, beyond 64 bits"},
  };
  for (const auto& [text, fact] : kCases) {
    const Error error = refusal(std::string("text\n") + text);
    EXPECT_EQ(error.kind, ErrorKind::kUnsupported) << text;
    EXPECT_EQ(error.file, "origin.jinja");
    EXPECT_EQ(error.place, "line 2") << text;
    EXPECT_EQ(error.fact, fact);
  }
}

TEST(ChatTemplate, RejectsUnsupportedValuesAtRender) {
  for (const char* text :
       {"{{ namespace() }}", "{{ [1]|map('string') }}", "{{ '%s' % 1 }}",
        "{{ ('a'|safe).replace('a', 'b') }}", "{{ 'ß'.upper() }}", "{{ strftime_now('%Z') }}",
        "{{ '{:>3}'.format(1) }}", "{{ 9223372036854775807 + 1 }}"}) {
    const auto rendered = render(text);
    ASSERT_FALSE(rendered.ok()) << text << *rendered;
    EXPECT_EQ(rendered.error().kind, ErrorKind::kUnsupported) << text;
    EXPECT_EQ(rendered.error().place, "line 1") << text;
  }
}

std::string repeated(const std::string& part, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += part;
  return text;
}

const std::string kManyTimes = "{% for i in range(100000) %}", kEnd = "{% endfor %}";

void expect_errors(const std::vector<std::string>& templates) {
  for (const std::string& text : templates) EXPECT_FALSE(render(text).ok()) << text.substr(0, 200);
}

TEST(ChatTemplate, RejectsDeepTemplatesAndValues) {
  expect_errors({
      "{{ " + repeated("(", 100000),
      "{{ " + repeated("[", 100000) + "1" + repeated("]", 100000) + " }}",
      "{{ " + repeated("not ", 100000) + "1 }}",
      "{{ " + repeated("- ", 100000) + "1 }}",
      "{{ 1" + repeated(" + 1", 100000) + " }}",
      "{{ 1" + repeated("|string", 100000) + " }}",
      "{{ x" + repeated(".a", 100000) + " }}",
      "{{ 1" + repeated(" if 1 else 1", 100000) + " }}",
      repeated("{% if 1 %}", 100000),
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(n=m()) %}{% endmacro %}{{ m() }}",
      "{% macro m() %}" + repeated("{% if 1 %}", 140) + "{{ m() }}" + repeated("{% endif %}", 140) +
          "{% endmacro %}{{ m() }}",
      "{% macro m() %}{% for x in [1] if m() %}{% endfor %}{% endmacro %}{{ m() }}",
      "{% set ns = namespace(x='ab') %}" + kManyTimes + "{% set ns.x = ns.x + ns.x %}" + kEnd,
      "{% set ns = namespace(x=[]) %}" + kManyTimes + "{% set ns.x = [ns.x] %}" + kEnd,
      "{% set ns = namespace(x=[1]) %}" + kManyTimes + "{% set ns.x = ns.x + ns.x %}" + kEnd,
  });
}

TEST(ChatTemplate, RejectsHugeValues) {
  expect_errors({
      "{{ 'a' * 99999999999 }}",
      "{{ [1] * 99999999999 }}",
      "{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}",
      "{{ 'a'|indent(99999999999, true) }}",
      "{{ [1]|tojson(indent=99999999999) }}",
  });
}

// Each runs to the step limit.
TEST(ChatTemplate, StopsLongLoops) {
#if defined(MORACLE_SANITIZED)
  GTEST_SKIP() << "takes minutes under sanitizers";
#endif
  expect_errors({
      kManyTimes + kManyTimes + kManyTimes + kEnd + kEnd + kEnd,
      "{% set x = 'a' * 8000000 %}" + kManyTimes + "{{ x ~ i == x ~ i }}" + kEnd,
      "{% set x = 'a' * 8000000 %}" + kManyTimes + "{{ ('a' * 4000000 ~ 'b') in x }}" + kEnd,
      "{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}" +
          kEnd + "{{ ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}" +
          kEnd + "{{ ns.x|tojson }}",
      "{% set a = namespace(x=[1]) %}{% set b = namespace(x=[1]) %}{% for i in range(90) %}"
      "{% set a.x = [a.x, a.x] %}{% set b.x = [b.x, b.x] %}" +
          kEnd + "{{ a.x == b.x }}",
      kManyTimes + "{{ 'abcdefghijklmnop' * 64 }}" + kEnd,
  });
}

TEST(ChatTemplate, FreesReferenceCycles) {
  const auto text = render(
      "{% set ns = namespace() %}{% set ns.me = ns %}{% macro m() %}{{ ns.me is defined }}"
      "{% endmacro %}{% set ns.m = m %}{% for x in [1, 2] if true %}{% set ns.loop = loop %}"
      "{% macro inner() %}{{ x }}{{ loop.length }}{% endmacro %}{% set ns.inner = inner %}"
      "{% endfor %}{{ m() }}{{ ns.loop.last }}{{ ns.inner() is string }}");
  ASSERT_TRUE(text.ok()) << text.error().to_string();
  EXPECT_EQ(*text, "TrueTrueTrue");
}

TEST(ChatTemplate, RejectsTextThatIsNotUtf8) {
  const auto text = render("{{ messages }}", {{"user", "ok"}, {"user", "a\xC3"}});
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(text.error().place, "message 1, content");
  EXPECT_EQ(refusal("ab\xC0\x80").place, "byte 2");
}

TEST(ChatTemplate, FormatsCurrentTime) {
  const auto text =
      render("{{ strftime_now('%Y-%m-%d %H:%M:%S %d %b %Y %A %B %p %-d %j %F %T%%') }}");
  ASSERT_TRUE(text.ok()) << text.error().to_string();
  EXPECT_EQ(text->substr(4, 1), "-");
  EXPECT_GE(std::stoi(text->substr(0, 4)), 2024);
  EXPECT_EQ(text->back(), '%');
}

TEST(ChatTemplate, RendersConcurrently) {
  auto chat = ChatTemplate::parse(
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
      "{{ m.role ~ ns.n }}{% endfor %}",
      "origin.jinja");
  ASSERT_TRUE(chat.ok());
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (std::string& text : texts) {
    threads.emplace_back([&chat, &text] {
      for (int i = 0; i < 100; ++i) text = *chat->render(kTurns);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, "system1user2assistant3");
}

}  // namespace
}  // namespace moracle::chat_template_test
