// Tests parsing of request bodies into jobs, and rejections.
#include "paths.h"
#include "serve/dialects/dialects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/api/api.h"
#include "support/must.h"

namespace moracle::serve::generation_request_test {
namespace {

using ::testing::HasSubstr;
using testing::must;

ServedModel small_model() {
  const Checkpoint checkpoint =
      must(Checkpoint::open(testing::models_dir() + "/qwen3moe-gptq-int4-g128"));
  ServedModel model = must(ServedModel::open(checkpoint));
  model.name = "small";
  must(model.adapters->add("tuned", nullptr));
  model.vocab_size = model.tokenizer.vocab_size();
  model.max_context = 64;
  return model;
}

class Requests : public ::testing::Test {
 protected:
  GenerationRequest completion(const char* body) {
    return must(read_completion(must(parse_body(body)), body, model_));
  }
  std::string refusal(const char* body, bool is_chat = false) {
    const auto parsed = parse_body(body);
    if (!parsed) return parsed.error().to_string();
    const auto read =
        is_chat ? read_chat(*parsed, body, model_) : read_completion(*parsed, body, model_);
    return read ? "accepted" : read.error().to_string();
  }
  ServedModel model_ = small_model();
};

TEST_F(Requests, FieldsBecomeJobs) {
  const GenerationRequest request = completion(R"({"model": "tuned", "prompt": ["And", [5, 6]],
      "n": 2, "max_tokens": 7, "temperature": 0.5, "top_k": -1, "top_p": 0.9, "min_p": 0.1,
      "seed": 3, "stop": "end", "logit_bias": {"5": -100}, "presence_penalty": 1,
      "frequency_penalty": -1, "repetition_penalty": 1.5, "ignore_eos": true, "logprobs": 4,
      "echo": true, "stream": true, "stream_options": {"include_usage": true}, "user": "x"})");
  EXPECT_TRUE(request.stream && request.include_usage && request.echo);
  ASSERT_EQ(request.jobs.size(), 4u);
  EXPECT_EQ(request.choices, 2);
  const Job& job = request.jobs[3];
  EXPECT_EQ(job.prompt, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(job.max_tokens, 7);
  EXPECT_EQ(job.adapter, 0);
  EXPECT_EQ(job.sampling.seed, 4u);
  EXPECT_FLOAT_EQ(job.sampling.temperature, 0.5F);
  EXPECT_EQ(job.sampling.top_k, 0);
  EXPECT_FLOAT_EQ(job.sampling.top_p, 0.9F);
  EXPECT_FLOAT_EQ(job.sampling.min_p, 0.1F);
  EXPECT_FLOAT_EQ(job.edits.bias.at(5), -100);
  EXPECT_FLOAT_EQ(job.edits.presence_penalty, 1);
  EXPECT_FLOAT_EQ(job.edits.frequency_penalty, -1);
  EXPECT_FLOAT_EQ(job.edits.repetition_penalty, 1.5F);
  EXPECT_TRUE(job.stop_ids.empty());
  EXPECT_EQ(job.stop_strings, std::vector<std::string>{"end"});
  EXPECT_EQ(job.num_top, 4);
  EXPECT_TRUE(job.scores_prompt && job.continues_prompt);
}

TEST_F(Requests, GenerationConfigBecomesLogitEdits) {
  model_.generation.edits = {.repetition_penalty = 1.05F, .min_length = 50, .suppress_tokens = {9}};
  model_.generation.stop_strings = {"configured"};
  model_.generation.max_tokens = 20;
  const Job plain = completion(R"({"prompt": "And"})").jobs[0];
  EXPECT_FLOAT_EQ(plain.edits.repetition_penalty, 1.05F);
  EXPECT_EQ(plain.edits.min_length, 50);
  EXPECT_EQ(plain.edits.suppress_tokens, std::vector<int32_t>{9});
  EXPECT_EQ(plain.stop_strings, std::vector<std::string>{"configured"});
  EXPECT_EQ(plain.max_tokens, 20);
  const Job job = completion(R"({"prompt": "And", "repetition_penalty": 1, "typical_p": 0.5,
      "no_repeat_ngram_size": 3, "min_tokens": 4, "suppress_tokens": [5], "max_tokens": 30,
      "begin_suppress_tokens": [6, 7], "bad_words": ["LORD"], "stop": ["<|im_end|>"],
      "stop_token_ids": [8]})")
                      .jobs[0];
  EXPECT_FLOAT_EQ(job.edits.repetition_penalty, 1);
  EXPECT_FLOAT_EQ(job.sampling.typical_p, 0.5F);
  EXPECT_EQ(job.edits.no_repeat_ngram_size, 3);
  EXPECT_EQ(job.edits.min_tokens, 4);
  EXPECT_EQ(job.edits.min_length, 0);
  EXPECT_EQ(job.edits.suppress_tokens, std::vector<int32_t>{5});
  EXPECT_EQ(job.edits.begin_suppress_tokens, (std::vector<int32_t>{6, 7}));
  EXPECT_EQ(job.max_tokens, 30);
  EXPECT_EQ(job.stop_strings, std::vector<std::string>{"<|im_end|>"});
  std::vector<int32_t> stops = model_.generation.eos_ids;
  stops.insert(stops.begin(), 8);
  EXPECT_EQ(job.stop_ids, stops);
  // Ids at the start of a text, and after a space if that is one token.
  ASSERT_FALSE(job.edits.bad_words_ids.empty());
  EXPECT_EQ(job.edits.bad_words_ids[0], must(model_.tokenizer.encode("LORD")));
  const Job stop_only =
      completion(R"({"prompt": "And", "ignore_eos": true, "stop_token_ids": [8]})").jobs[0];
  EXPECT_EQ(stop_only.stop_ids, std::vector<int32_t>{8});
}

TEST_F(Requests, MissingAndNullFieldsHaveDefaults) {
  for (const char* body : {R"({"prompt": "And"})",
                           R"({"prompt": "And", "n": null, "seed": null, "logprobs": null,
                               "temperature": null, "stop": null, "stream": null,
                               "tools": [], "suffix": "", "response_format": {"type": "text"}})"}) {
    const GenerationRequest request = completion(body);
    ASSERT_EQ(request.jobs.size(), 1u);
    EXPECT_EQ(request.jobs[0].max_tokens, 16);
    EXPECT_EQ(request.jobs[0].stop_ids, model_.generation.eos_ids);
    EXPECT_EQ(request.jobs[0].sampling.temperature, model_.generation.sampling.temperature);
    EXPECT_FALSE(request.jobs[0].num_top);
    EXPECT_EQ(request.model, "small");
  }
}

TEST_F(Requests, ChatDefaultsToRestOfContext) {
  const std::string body = R"({"messages": [{"role": "user", "content": [{"type": "text",
      "text": "Who"}]}], "logprobs": true, "top_logprobs": 2})";
  const GenerationRequest request = must(read_chat(must(parse_body(body)), body, model_));
  const ChatMessage message{"user", "Who"};
  const Job& job = request.jobs.at(0);
  EXPECT_EQ(job.prompt, must(model_.tokenizer.encode(must(model_.chat->render({&message, 1})))));
  EXPECT_EQ(job.max_tokens, 64 - static_cast<int64_t>(job.prompt.size()));
  EXPECT_EQ(job.num_top, 2);
  EXPECT_FALSE(job.continues_prompt);
}

TEST_F(Requests, RejectsInvalidFieldsByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "JSON"},
      {"[]", "an object"},
      {"{\"prompt\": \"\xff\"}", "UTF-8"},
      {R"({"prompt": 1e999})", "doubles"},
      {"{}", "prompt: needs"},
      {R"({"prompt": 5})", "prompt: needs"},
      {R"({"prompt": ""})", "prompt: needs at least one token"},
      {R"({"prompt": []})", "prompt: needs at least one token"},
      {R"({"prompt": [-1]})", "prompt[0]: needs"},
      {R"({"prompt": [99999999]})", "prompt: needs ids"},
      {R"({"prompt": ["a", 5]})", "prompt[1]"},
      {R"({"prompt": "a", "max_tokens": 0})", "max_tokens: needs"},
      {R"({"prompt": "a", "max_tokens": 64})", "context of 64"},
      {R"({"prompt": "a", "max_tokens": 1.5})", "max_tokens: needs"},
      {R"({"prompt": "a", "n": 65})", "n: needs"},
      {R"({"prompt": "a", "temperature": "hot"})", "temperature: needs"},
      {R"({"prompt": "a", "top_p": 0})", "top_p: needs"},
      {R"({"prompt": "a", "logprobs": 21})", "logprobs: needs"},
      {R"({"prompt": "a", "stop": [""]})", "stop: needs"},
      {R"({"prompt": "a", "stop": 3})", "stop: needs"},
      {R"({"prompt": "a", "logit_bias": {"x": 1}})", "logit_bias: needs"},
      {R"({"prompt": "a", "logit_bias": {"5": 101}})", "logit_bias.5: needs"},
      {R"({"prompt": "a", "stream": "yes"})", "stream: needs"},
      {R"({"prompt": "a", "suffix": "b"})", "suffix: needs no value"},
      {R"({"prompt": "a", "tools": [{}]})", "tools: needs a chat request"},
      {R"({"prompt": "a", "model": "unloaded"})", "model: needs"},
      {R"({"prompt": "a", "best_of": 3})", "best_of: needs"},
      {R"({"prompt": "a", "stop_token_ids": [99999999]})", "stop_token_ids: needs token ids"},
      {R"({"prompt": "a", "stop_token_ids": ["a"]})", "stop_token_ids[0]: needs"},
      {R"({"prompt": "a", "bad_words": [""]})", "bad_words: needs"},
      {R"({"prompt": "a", "min_tokens": -1})", "min_tokens: needs"},
      {R"({"prompt": "a", "typical_p": 0})", "typical_p: needs"},
      {R"({"prompt": "a", "reasoning_effort": "low"})", "reasoning_effort: needs a chat request"},
      {R"({"prompt": "a", "enable_thinking": false})",
       "enable_thinking: needs no value; chat_template_kwargs takes"},
      {R"({"prompt": "a", "response_format": {"type": "json_schema"}})", "response_format: needs"},
  };
  for (const auto& [body, message] : cases) EXPECT_THAT(refusal(body), HasSubstr(message)) << body;
  EXPECT_THAT(refusal((std::string(100, '[') + std::string(100, ']')).c_str()),
              HasSubstr("64 levels"));
}

TEST_F(Requests, RejectsInvalidMessagesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"{}", "messages: needs"},
      {R"({"messages": []})", "messages: needs at least one"},
      {R"({"messages": [{"content": "a"}]})", "messages[0].role: needs"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
       "messages[0].content[0].type: needs"},
      {R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2})", "logprobs: needs"},
      {R"({"messages": [{"role": "user"}], "tools": [{"type": "function"}]})",
       "tools: needs a model whose chat template supports tools"},
      {R"({"messages": [{"role": "user"}], "tool_choice": "required"})", "tools: needs tools"},
      {R"({"messages": [{"role": "user"}], "tool_choice": "some"})", "tool_choice: needs auto"},
      {R"({"messages": [{"role": "user"}], "parallel_tool_calls": 5})", "parallel_tool_calls:"},
      {R"({"messages": [{"role": "user"}], "chat_template_kwargs": {"tools": 1}})",
       "chat_template_kwargs.tools: needs"},
      {R"({"messages": [{"role": "a", "function_call": {}}]})", "messages[0].function_call: needs"},
      {R"({"messages": [{"role": "user"}], "enable_thinking": true})",
       "enable_thinking: needs no value; chat_template_kwargs takes"},
      {R"({"messages": [{"role": "user"}], "thinking": {"type": "disabled"}})",
       "thinking: needs no value; chat_template_kwargs takes"},
      {R"({"messages": [{"role": "user"}], "verbosity": "low"})",
       "verbosity: needs no value; chat_template_kwargs takes"},
      {R"({"messages": [{"role": "user"}], "reasoning_effort": "extreme"})",
       "reasoning_effort: needs none, minimal, low"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f",
          "arguments": "5"}}]}]})",
       "messages[0].tool_calls[0].function.arguments: needs the text of a JSON object"},
  };
  for (const auto& [body, message] : cases)
    EXPECT_THAT(refusal(body, true), HasSubstr(message)) << body;
}

// A model whose template prints tools and calls.
ServedModel model_with_tools() {
  ServedModel model = small_model();
  model.chat = must(ChatTemplate::parse(
      "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
      "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}{{ mode }}",
      "test"));
  model.dialect = find_dialect(*model.chat);
  model.max_context = 4096;
  return model;
}

TEST(ToolRequests, PromptKeepsMemberOrderOfToolsAndCalls) {
  const ServedModel model = model_with_tools();
  const std::string tools = R"([{"type": "function", "function": {"name": "f", "b": 1, "a": 2}}])";
  const std::string messages = R"([{"role": "user", "content": "Hi"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
       "function": {"name": "f", "arguments": "{\"y\": 1, \"x\": 2}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "done"}]}])";
  const auto read = [&](const std::string& fields) {
    const std::string body =
        R"({"messages": )" + messages + R"(, "tools": )" + tools + fields + "}";
    return must(read_chat(must(parse_body(body)), body, model));
  };
  const std::string conversation =
      R"(Hi<tool_call>{"name": "f", "arguments": {"y": 1, "x": 2}}</tool_call>done)";
  const GenerationRequest request = read(R"(, "chat_template_kwargs": {"mode": "!"})");
  EXPECT_EQ(request.prompts[0], tools + conversation + "!");
  ASSERT_TRUE(request.form.tools);
  EXPECT_EQ(request.form.tools->format.name, "hermes");
  EXPECT_TRUE(request.form.tools->tools.has("f"));
  const GenerationRequest without = read(R"(, "tool_choice": "none")");
  EXPECT_EQ(without.prompts[0], "null" + conversation);
  EXPECT_FALSE(without.form.tools);
}

TEST(ChatRequests, ReasoningEffortBecomesTemplateVariable) {
  ServedModel model = small_model();
  model.chat = must(ChatTemplate::parse(
      "{{ reasoning_effort | default('-') }} {{ enable_thinking | default('-') }} "
      "{{ thinking | default('-') }}",
      "test"));
  const auto prompt = [&](const std::string& fields) {
    const std::string body = R"({"messages": [{"role": "user", "content": "a"}])" + fields + "}";
    return must(read_chat(must(parse_body(body)), body, model)).prompts[0];
  };
  EXPECT_EQ(prompt(""), "- - -");
  EXPECT_EQ(prompt(R"(, "reasoning_effort": null)"), "- - -");
  EXPECT_EQ(prompt(R"(, "reasoning_effort": "high")"), "high - -");
  EXPECT_EQ(prompt(R"(, "reasoning_effort": "none")"), "- False False");
  EXPECT_EQ(prompt(R"(, "reasoning_effort": "none", "chat_template_kwargs": {"thinking": true})"),
            "- False True");
  EXPECT_EQ(prompt(R"(, "chat_template_kwargs": {"reasoning_effort": "own"})"), "own - -");
}

// Renders a conversation with one call.
std::string shown_call(const ServedModel& model, const std::string& arguments) {
  const std::string body = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant",
      "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f")" +
                           arguments + "}}]}]}";
  const auto read = read_chat(must(parse_body(body)), body, model);
  return read ? read->prompts[0] : read.error().to_string();
}

TEST(ChatRequests, EmptyArgumentsBecomeEmptyObject) {
  const ServedModel model = model_with_tools();
  for (const char* arguments :
       {R"(, "arguments": "")", R"(, "arguments": "null")", R"(, "arguments": null)", "",
        R"(, "arguments": "{}")", R"(, "arguments": {})"}) {
    EXPECT_THAT(shown_call(model, arguments), HasSubstr("\"arguments\": {}}")) << arguments;
  }
}

// As in DeepSeek-V3: the template ignores tools, and accepts calls only without content.
TEST(ChatRequests, TemplateThatConcatenatesArgumentsGetsText) {
  ServedModel model = small_model();
  const auto use = [&](const char* text) {
    model.chat = must(ChatTemplate::parse(text, "test"));
    model.dialect = find_dialect(*model.chat);
  };
  use("{% for m in messages %}{% if m['content'] is none %}{% for tool in m['tool_calls'] %}"
      "{{ '<call>' + tool['function']['name'] + '\n' + tool['function']['arguments'] + '</call>' }}"
      "{% endfor %}{% else %}{{ m['content'] }}{% endif %}{% endfor %}");
  EXPECT_FALSE(model.dialect.takes_tools);
  EXPECT_TRUE(model.dialect.arguments_as_text);
  EXPECT_THAT(shown_call(model, R"(, "arguments": "{\"b\": 1, \"a\": 2}")"),
              HasSubstr("<call>f\n{\"b\": 1, \"a\": 2}</call>"));
  EXPECT_THAT(shown_call(model, R"(, "arguments": {"b": 1})"), HasSubstr("<call>f\n{\"b\":"));
  EXPECT_THAT(shown_call(model, R"(, "arguments": "")"), HasSubstr("<call>f\n{}</call>"));
  // Printing needs text, too. A template with tojson needs an object.
  use("{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<call>"
      "{{ c.function.name }} {{ c.function.arguments }}</call>{% endfor %}{% endfor %}");
  EXPECT_TRUE(model.dialect.arguments_as_text);
  use("{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<call>"
      "{{ c.function.name }} {{ c.function.arguments | tojson }}</call>{% endfor %}{% endfor %}");
  EXPECT_FALSE(model.dialect.arguments_as_text);
  EXPECT_THAT(shown_call(model, R"(, "arguments": "{\"b\": 1}")"), HasSubstr("f {\"b\": 1}<"));
}

TEST(ToolRequests, RejectsInvalidToolsByName) {
  const ServedModel model = model_with_tools();
  const std::pair<const char*, const char*> cases[] = {
      {"5", "tools: needs"},
      {"[{}]", "tools[0].type: needs the type function"},
      {R"([{"type": "function"}])", "tools[0].function.name: needs"},
      {R"([{"type": "function", "function": {"name": ""}}])", "tools[0].function.name: needs"},
  };
  for (const auto& [tools, message] : cases) {
    const std::string body =
        std::string(R"({"messages": [{"role": "user", "content": "a"}], "tools": )") + tools + "}";
    const auto read = read_chat(must(parse_body(body)), body, model);
    ASSERT_FALSE(read.ok()) << tools;
    EXPECT_THAT(read.error().to_string(), HasSubstr(message));
  }
}

TEST(ApiKey, ComparesWholeKey) {
  EXPECT_TRUE(equal_in_constant_time("Bearer key", "Bearer key"));
  for (const char* other :
       {"", "B", "Bearer ke", "Bearer keyy", "bearer key", "Bearer keyBearer key"})
    EXPECT_FALSE(equal_in_constant_time(other, "Bearer key")) << other;
  EXPECT_FALSE(equal_in_constant_time("a", ""));
}

}  // namespace
}  // namespace moracle::serve::generation_request_test
