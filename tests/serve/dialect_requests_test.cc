// Tests the prompts of /v1/responses and /v1/messages, and the store of responses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paths.h"
#include "serve/dialects/dialects.h"
#include "support/must.h"

namespace moracle::serve::dialect_requests_test {
namespace {

using ::testing::HasSubstr;
using testing::must;

// A model whose template prints all messages as JSON.
ServedModel printing_model() {
  const Checkpoint checkpoint =
      must(Checkpoint::open(testing::models_dir() + "/qwen3moe-gptq-int4-g128"));
  ServedModel model = must(ServedModel::open(checkpoint));
  model.name = "small";
  model.chat = must(ChatTemplate::parse(
      "{{ tools | tojson }}{% for m in messages %}|{{ m.role }}:{% if m.reasoning_content %} "
      "({{ m.reasoning_content }}){% endif %} {{ m.content }}{% for c in m.tool_calls or [] %}"
      "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}|"
      "{{ reasoning_effort | default('-') }} {{ enable_thinking | default('-') }}",
      "test"));
  model.dialect = find_dialect(*model.chat);
  model.vocab_size = model.tokenizer.vocab_size();
  model.max_context = 4096;
  return model;
}

class DialectRequests : public ::testing::Test {
 protected:
  Result<GenerationRequest> responses(const std::string& body) {
    return read_responses(must(parse_body(body)), body, model_, store_);
  }
  Result<GenerationRequest> messages(const std::string& body) {
    return read_messages(must(parse_body(body)), body, model_);
  }
  const ServedModel model_ = printing_model();
  ResponseStore store_;
};

const char* const kFunction =
    R"({"name": "f", "description": "d", "parameters": {"type": "object"}})";

TEST_F(DialectRequests, ResponsesItemsBecomeMessages) {
  const GenerationRequest request = must(responses(R"({"instructions": "Be brief.", "input": [
      {"role": "developer", "content": "Really."}, {"role": "user", "content": [
       {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
      {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
      {"type": "message", "role": "assistant", "content": [
       {"type": "output_text", "text": "I look."}]},
      {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"y\": 1, \"x\": 2}"},
      {"type": "function_call", "call_id": "2", "name": "f", "arguments": ""},
      {"type": "function_call_output", "call_id": "1", "output": "one"},
      {"type": "function_call_output", "call_id": "2", "output": [
       {"type": "input_text", "text": "two"}]},
      {"role": "user", "content": "c"}], "reasoning": {"effort": "low"}, "tools": [
      {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}]})"));
  EXPECT_EQ(request.prompts[0],
            std::string(R"([{"type": "function", "function": )") + kFunction +
                "}]|system: Be brief.\n\nReally.|user: ab|assistant: (hm) I look."
                "<tool_call>{\"name\": \"f\", \"arguments\": {\"y\": 1, \"x\": 2}}</tool_call>"
                "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>|tool: one|tool: two"
                "|user: c|low -");
  EXPECT_EQ(request.items.size(), 9u);
  EXPECT_FALSE(request.jobs[0].continues_prompt);
  EXPECT_TRUE(request.fills_context);
}

TEST_F(DialectRequests, StoredItemsComeBeforeNewOnes) {
  store_.add("resp_1", {.items = R"([{"role": "user", "content": "a"},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]}])",
                        .reply = "{}"});
  const GenerationRequest request =
      must(responses(R"({"previous_response_id": "resp_1", "input": "c"})"));
  EXPECT_EQ(request.prompts[0], "null|user: a|assistant: b|user: c|- -");
  EXPECT_EQ(request.items.size(), 3u);
  EXPECT_TRUE(must(responses(R"({"input": "c", "store": false})")).items.is_null());
  const auto wrong = responses(R"({"previous_response_id": "resp_1", "input": [
      {"role": "user", "content": "c"}, {"type": "other"}]})");
  EXPECT_THAT(wrong.error().to_string(), HasSubstr("input[1].type: needs"));
}

TEST_F(DialectRequests, MessagesBlocksBecomeMessages) {
  const GenerationRequest request = must(messages(R"({"max_tokens": 7, "system": [
      {"type": "text", "text": "Be brief."}, {"type": "text", "text": "Really."}], "messages": [
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
       {"type": "text", "text": "I look."},
       {"type": "tool_use", "id": "1", "name": "f", "input": {"y": 1, "x": 2}}]},
      {"role": "user", "content": [
       {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "one"}]},
       {"type": "text", "text": "c"}]}], "tools": [{"name": "f", "description": "d",
      "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}],
      "thinking": {"type": "enabled", "budget_tokens": 1024}, "stop_sequences": ["end"],
      "metadata": {"user_id": "u"}, "top_k": 5, "temperature": 0.5})"));
  EXPECT_EQ(request.prompts[0],
            std::string(R"([{"type": "function", "function": )") + kFunction +
                "}]|system: Be brief.\n\nReally.|user: a\nb|assistant: (hm) I look."
                "<tool_call>{\"name\": \"f\", \"arguments\": {\"y\": 1, \"x\": 2}}</tool_call>"
                "|tool: one|user: c|- True");
  const Job& job = request.jobs.at(0);
  EXPECT_EQ(job.max_tokens, 7);
  EXPECT_EQ(job.stop_strings, std::vector<std::string>{"end"});
  EXPECT_EQ(job.sampling.top_k, 5);
  EXPECT_FALSE(request.fills_context);
}

TEST_F(DialectRequests, MessagesThinkOnlyWhenAsked) {
  const auto prompt = [&](const std::string& fields) {
    return must(messages(R"({"max_tokens": 1, "messages": [{"role": "user", "content": "a"}])" +
                         fields + "}"))
        .prompts[0];
  };
  EXPECT_EQ(prompt(""), "null|user: a|- False");
  EXPECT_EQ(prompt(R"(, "thinking": {"type": "disabled"})"), "null|user: a|- False");
  EXPECT_EQ(prompt(R"(, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"})"),
            "null|user: a|high True");
}

TEST_F(DialectRequests, EachDialectTakesCacheSalt) {
  const std::string chat = R"({"cache_salt": "a", "messages": [{"role": "user", "content": "x"}]})";
  const std::string items = R"({"cache_salt": "a", "input": "x"})";
  const std::string blocks =
      R"({"cache_salt": "a", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}]})";
  for (const GenerationRequest& request : {must(read_chat(must(parse_body(chat)), chat, model_)),
                                           must(responses(items)), must(messages(blocks))}) {
    ASSERT_FALSE(request.jobs.empty());
    EXPECT_EQ(request.jobs[0].cache_salt, "a");
  }
}

TEST(ResponseStore, EvictsLeastRecentlyUsedBeyondLimit) {
  ResponseStore store(4 * 1024);
  for (const char* id : {"a", "b", "c"}) store.add(id, {std::string(600, 'x'), "reply"});
  EXPECT_TRUE(store.find("a"));
  store.add("d", {std::string(600, 'x'), "reply"});
  EXPECT_TRUE(store.find("a"));
  EXPECT_FALSE(store.find("b"));
  EXPECT_EQ(store.find("d")->reply, "reply");
  EXPECT_LE(store.num_bytes(), 4u * 1024);
  store.add("e", {std::string(5000, 'x'), ""});
  EXPECT_FALSE(store.find("e"));
  EXPECT_TRUE(store.find("d"));
}

TEST(ResponseStore, ExpiresUnusedResponses) {
  using Clock = ResponseStore::Clock;
  using std::chrono::seconds;
  ResponseStore store(1 << 20, seconds(10));
  const Clock::time_point start{};
  store.add("a", {"[]", "{}"}, start);
  store.add("b", {"[]", "{}"}, start);
  EXPECT_TRUE(store.find("a", start + seconds(9)));
  EXPECT_TRUE(store.find("a", start + seconds(18)));
  EXPECT_FALSE(store.find("b", start + seconds(18)));
  const size_t bytes = store.num_bytes();
  store.add("c", {"[]", "{}"}, start + seconds(40));
  EXPECT_FALSE(store.find("a", start + seconds(40)));
  EXPECT_EQ(store.num_bytes(), bytes);
}

}  // namespace
}  // namespace moracle::serve::dialect_requests_test
