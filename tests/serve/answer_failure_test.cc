// Answers that fail after their first tokens: each dialect ends with the usage and the reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paths.h"
#include "serve/answers/answer.h"
#include "serve/dialects/dialects.h"
#include "support/must.h"

namespace moracle::serve::answer_failure_test {
namespace {

using moracle::testing::must;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class Written : public Exchange {
 public:
  void reply(HttpReply reply) override { reply_ = std::move(reply); }
  void start_stream(HttpReply) override {}
  void write(std::string text) override { text_ += text; }
  void end() override { ++ends_; }
  void on_leave(std::function<void()>) override {}
  bool left() const override { return false; }
  void post(std::function<void()> work) override { work(); }

  HttpReply reply_;
  std::string text_;
  int ends_ = 0;
};

class FailingAnswers : public ::testing::Test {
 protected:
  FailingAnswers() {
    model_.chat =
        must(ChatTemplate::parse("{% for m in messages %}{{ m.content }}{% endfor %}{% if "
                                 "add_generation_prompt %}A:{% endif %}",
                                 "test"));
    model_.dialect = find_dialect(*model_.chat);
    model_.vocab_size = model_.tokenizer.vocab_size();
    model_.max_context = 4096;
  }

  GenerationRequest request(Dialect dialect, const std::string& stream) {
    const std::string chat =
        R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 9, "stream": )" + stream;
    const auto read = [&](const std::string& text) {
      const auto body = must(parse_body(text));
      switch (dialect) {
        case Dialect::kCompletions:
          return read_completion(body, text, model_);
        case Dialect::kChat:
          return read_chat(body, text, model_);
        case Dialect::kResponses:
          return read_responses(body, text, model_, store_);
        default:
          return read_messages(body, text, model_);
      }
    };
    if (dialect == Dialect::kCompletions)
      return must(read(R"({"prompt": "a", "stream": )" + stream + "}"));
    if (dialect == Dialect::kResponses)
      return must(read(R"({"input": "a", "stream": )" + stream + "}"));
    return must(read(chat + "}"));
  }

  /// Two tokens, then the failure.
  std::shared_ptr<Written> fail(Dialect dialect, const std::string& stream, Finish finish) {
    auto exchange = std::make_shared<Written>();
    GenerationRequest asked = request(dialect, stream);
    const auto answer = Answer::make(asked, model_.tokenizer, exchange, store_);
    answer->set_cancel([](size_t) {});
    for (const char* text : {"one ", "two"})
      answer->take(0, {.text = text, .prompt_tokens = 5, .new_tokens = text[0] == 'o' ? 1 : 2});
    answer->take(0, {.finish = finish, .message = "why so", .prompt_tokens = 5, .new_tokens = 2});
    answer->take(0, {.text = "late", .finish = Finish::kStop, .new_tokens = 3});
    return exchange;
  }

  ServedModel model_ = must(ServedModel::open(
      must(Checkpoint::open(moracle::testing::models_dir() + "/qwen3moe-gptq-int4-g128"))));
  ResponseStore store_;
};

nlohmann::json last_event(const std::string& stream) {
  EXPECT_THAT(stream, EndsWith("\n\n"));
  return nlohmann::json::parse(stream.substr(stream.rfind("data: ") + 6));
}

constexpr Finish kFailures[] = {Finish::kTimeout, Finish::kStopping, Finish::kForbidden,
                                Finish::kFailed};

TEST_F(FailingAnswers, StreamsOfAllDialectsEndWithUsageAndReason) {
  for (const Finish finish : kFailures) {
    const std::string reason = finish == Finish::kTimeout ? "time limit" : "why so";
    for (const Dialect dialect : {Dialect::kCompletions, Dialect::kChat, Dialect::kMessages}) {
      const auto written = fail(dialect, "true", finish);
      EXPECT_EQ(written->ends_, 1);
      const nlohmann::json event = last_event(written->text_);
      EXPECT_THAT(event["error"]["message"].get<std::string>(), HasSubstr(reason));
      const bool is_message = dialect == Dialect::kMessages;
      EXPECT_EQ(event["usage"][is_message ? "input_tokens" : "prompt_tokens"], 5);
      EXPECT_EQ(event["usage"][is_message ? "output_tokens" : "completion_tokens"], 2);
    }
    const auto written = fail(Dialect::kResponses, "true", finish);
    EXPECT_EQ(written->ends_, 1);
    const nlohmann::json event = last_event(written->text_);
    EXPECT_EQ(event["type"], "response.failed");
    const nlohmann::json& response = event["response"];
    EXPECT_EQ(response["status"], "failed");
    EXPECT_THAT(response["error"]["message"].get<std::string>(), HasSubstr(reason));
    EXPECT_EQ(response["usage"]["input_tokens"], 5);
    EXPECT_EQ(response["usage"]["output_tokens"], 2);
    EXPECT_EQ(response["output"][0]["status"], "incomplete");
    EXPECT_EQ(response["output"][0]["content"][0]["text"], "one two");
  }
}

// The blocks of a message are closed before its error.
TEST_F(FailingAnswers, MessageClosesItsBlock) {
  const auto written = fail(Dialect::kMessages, "true", Finish::kFailed);
  const size_t closed = written->text_.find("content_block_stop");
  ASSERT_NE(closed, std::string::npos);
  EXPECT_LT(closed, written->text_.find("event: error"));
}

TEST_F(FailingAnswers, WholeRepliesOfAllDialectsAreErrors) {
  for (const Finish finish : kFailures) {
    for (const Dialect dialect :
         {Dialect::kCompletions, Dialect::kChat, Dialect::kResponses, Dialect::kMessages}) {
      const auto written = fail(dialect, "false", finish);
      EXPECT_GE(written->reply_.status, 400);
      EXPECT_THAT(written->reply_.body,
                  HasSubstr(finish == Finish::kTimeout ? "time limit" : "why so"));
    }
  }
}

}  // namespace
}  // namespace moracle::serve::answer_failure_test
