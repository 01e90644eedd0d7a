#include "ranks/run_prompts.h"

#include <algorithm>
#include <iostream>

#include "base/text.h"
#include "base/try.h"
#include "chat/answer_text.h"
#include "command.h"
#include "plan_text.h"
#include "ranks/routing_file.h"
#include "terminal.h"

namespace moracle::cli {
namespace run_prompts_files {
namespace {

constexpr const char* kReasons[] = {"eos", "length", "cancelled"};

struct Answer {
  std::vector<int32_t> prompt, ids;
  int32_t reason = 2;  // of kReasons
};

// Reads the prompts on rank 0, and gives them to all ranks.
Result<std::vector<Answer>> encoded(const RunOptions& options, const Tokenizer& tokenizer,
                                    const std::shared_ptr<Group>& group) {
  std::vector<Answer> answers;
  for (const std::string& text : options.prompts) {
    Answer& answer = answers.emplace_back();
    MORACLE_TRY(answer.prompt, tokenizer.encode_prompt(text));
    MORACLE_CHECK(share_ids(group, answer.prompt));
    if (!answer.prompt.empty()) continue;
    return Error{ErrorKind::kInvalidArgument, "", str("prompt ", answers.size()),
                 "at least one token", "it is empty"};
  }
  return answers;
}

// True for a prompt that another rank continues.
bool is_elsewhere(size_t prompt, const ModelOptions& options) {
  if (options.spread != Spread::kDispatched || !options.group) return false;
  return static_cast<int64_t>(prompt) % options.group->size() != options.group->rank();
}

Status answer_own(Model& model, const ModelOptions& model_options,
                  const GenerateOptions& generating, std::vector<Answer>& answers) {
  for (size_t i = 0; i < answers.size() && !interrupted(); ++i) {
    if (is_elsewhere(i, model_options)) continue;
    MORACLE_TRY(const Generation done, generate(model, answers[i].prompt, generating));
    answers[i].ids = done.ids;
    answers[i].reason = static_cast<int32_t>(
        std::find(std::begin(kReasons), std::end(kReasons), done.stop_reason) - kReasons);
  }
  return model.rest();
}

// Every rank then has the answers of all.
Status gather(const ModelOptions& options, std::vector<Answer>& answers) {
  if (options.spread != Spread::kDispatched || !options.group) return {};
  for (size_t i = 0; i < answers.size(); ++i) {
    const int64_t from = static_cast<int64_t>(i) % options.group->size();
    std::vector<int32_t> sent = answers[i].ids;
    sent.push_back(answers[i].reason);
    MORACLE_CHECK(share_ids(options.group, sent, from));
    answers[i].reason = sent.back();
    sent.pop_back();
    answers[i].ids = std::move(sent);
  }
  return {};
}

Result<std::string> text_of(const Answer& answer, const Tokenizer& tokenizer) {
  AnswerText text(tokenizer, nullptr);
  MORACLE_CHECK(text.follow(answer.prompt));
  std::string all;
  for (const int32_t id : answer.ids) {
    MORACLE_TRY(const std::string piece, text.push(id));
    all += piece;
  }
  return all + text.finish(answer.reason == 0);
}

Status show_answers(const std::vector<Answer>& answers, const Tokenizer& tokenizer,
                    const Model& model, const Checkpoint& checkpoint, bool as_json) {
  Json all = Json::array();
  for (size_t i = 0; i < answers.size(); ++i) {
    const Answer& answer = answers[i];
    MORACLE_TRY(const std::string text, text_of(answer, tokenizer));
    if (!as_json) std::cout << bold(str("prompt ", i + 1)) << "\n" << text << "\n";
    all.push_back({{"prompt_ids", answer.prompt},
                   {"ids", answer.ids},
                   {"text", text},
                   {"stop_reason", kReasons[answer.reason]}});
  }
  if (as_json) {
    print({{"answers", all},
           {"backends", backend_names(model)},
           {"not_used", checkpoint.not_used()}});
  }
  return {};
}

Status check_use(const RunOptions& options) {
  if (!options.chat) return {};
  return Error{ErrorKind::kInvalidArgument, "", "--chat", "one prompt, or none",
               str("there are ", options.prompts.size())};
}

}  // namespace
}  // namespace run_prompts_files

int run_prompts(const RunOptions& options) {
  using namespace run_prompts_files;
  if (Status good = check_use(options); !good) return fail(good.error());
  CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(options.model.folder));
  CLI_TRY(const Tokenizer tokenizer, Tokenizer::open(options.model.folder));
  CLI_TRY(const GenerationConfig config, GenerationConfig::open(checkpoint));
  CLI_TRY(ModelOptions model_options, options.model.options());
  const SamplingOptions drawing = options.sampling(config);
  if (Status good = check(drawing); !good) return fail(good.error());
  if (Status joined = options.model.ranks.join(model_options); !joined) return fail(joined.error());
  CLI_TRY(std::vector<Answer> answers, encoded(options, tokenizer, model_options.group));
  RoutingFile routing(options.routing_statistics);
  if (Status good = routing.begin(model_options); !good) return fail(good.error());
  ProgressBar loading("loading");
  model_options.progress = loading.callback();
  CLI_TRY(Model model, Model::load(checkpoint, model_options));
  loading.clear();
  if (!options.model.json) show_choices(model, checkpoint);
  GenerateOptions generating{.max_tokens = options.max_tokens.value_or(128), .sampling = drawing};
  generating.sampling.excluded_ids = tokenizer.ids_without_token(model.vocab_size());
  if (!options.ignore_eos) generating.stop_ids = config.eos_ids;
  generating.adapter = options.model.adapter();
  generating.on_token = [](int32_t) { return !interrupted(); };
  Status done = answer_own(model, model_options, generating, answers);
  if (done) done = gather(model_options, answers);
  if (done) done = routing.write(model);
  if (done) done = show_answers(answers, tokenizer, model, checkpoint, options.model.json);
  if (!done) return fail(done.error());
  if (!std::cout) return fail_output();
  return interrupted() ? kFailed : kDone;
}

}  // namespace moracle::cli
