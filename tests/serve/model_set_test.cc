// Models that are loaded at their first use: refused memory fails the request, not the server.
#include "serve/model_set/model_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "paths.h"
#include "support/must.h"

namespace moracle::serve::model_set_test {
namespace {

using moracle::testing::must;
using ::testing::HasSubstr;

// Keeps the reply.
class Recorded : public Exchange {
 public:
  void reply(HttpReply reply) override { reply_.set_value(std::move(reply)); }
  void start_stream(HttpReply) override {}
  void write(std::string) override {}
  void end() override {}
  void on_leave(std::function<void()>) override {}
  bool left() const override { return false; }
  void post(std::function<void()> work) override { work(); }
  HttpReply wait() { return reply_.get_future().get(); }

 private:
  std::promise<HttpReply> reply_;
};

class ModelSetUnderPressure : public ::testing::Test {
 protected:
  ModelSource source(int refused) {
    return {.name = "small",
            .bytes = [] { return Result<int64_t>(1); },
            .load = [this, refused](const std::function<bool()>&) -> Result<LoadedWeights> {
              if (++loads_ <= refused) throw std::bad_alloc();
              const std::string folder =
                  moracle::testing::models_dir() + "/qwen3moe-gptq-int4-g128";
              const Checkpoint checkpoint = must(Checkpoint::open(folder));
              RunningOptions options;
              options.engine.cache_bytes = int64_t{16} << 20;
              return LoadedWeights{must(ServedModel::open(checkpoint)),
                                   must(Model::load(checkpoint, {.threads = 1})), options};
            }};
  }
  HttpReply ask(ModelSet& set, ModelSet::Work work) {
    const auto exchange = std::make_shared<Recorded>();
    set.use("small", exchange, ErrorForm::kOpenAi, std::move(work));
    return exchange->wait();
  }
  static void answer(ModelApi&, const std::shared_ptr<Exchange>& exchange) {
    exchange->reply({.body = "answered"});
  }
  static void run_out(ModelApi&, const std::shared_ptr<Exchange>&) { throw std::bad_alloc(); }

  SharedState shared_;
  int loads_ = 0;  // of the loading thread, read after a reply
};

TEST_F(ModelSetUnderPressure, LoadThatRunsOutOfMemoryFailsItsRequestAlone) {
  ModelSet set(shared_);
  std::vector<ModelSource> sources;
  sources.push_back(source(1));
  set.add(std::move(sources));
  const HttpReply refused = ask(set, answer);
  EXPECT_EQ(refused.status, 500);
  EXPECT_THAT(refused.body, HasSubstr("the model does not load: model: needs memory of the host"));
  // The thread is still there, and tries again.
  EXPECT_EQ(ask(set, answer).body, "answered");
  EXPECT_EQ(loads_, 2);
  set.stop();
  set.clear();
}

TEST_F(ModelSetUnderPressure, RequestThatRunsOutOfMemoryLeavesTheModelLoaded) {
  ModelSet set(shared_);
  std::vector<ModelSource> sources;
  sources.push_back(source(0));
  set.add(std::move(sources));
  const HttpReply refused = ask(set, run_out);  // on the loading thread
  EXPECT_EQ(refused.status, 500);
  EXPECT_THAT(refused.body, HasSubstr("the server is out of memory"));
  EXPECT_EQ(ask(set, answer).body, "answered");
  EXPECT_EQ(loads_, 1);
  set.stop();
  set.clear();
}

}  // namespace
}  // namespace moracle::serve::model_set_test
