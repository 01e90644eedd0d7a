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

constexpr const char* kReasons[] = {"eos", "length", "cancelled", "stop"};

struct Answer {
  std::vector<int32_t> prompt, ids;
  int32_t reason = 2;  // index in kReasons
};

// Reads the prompts on rank 0 and broadcasts them.
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

// True if another rank generates this prompt's answer.
bool is_elsewhere(size_t prompt, const ModelOptions& options) {
  if (options.spread != Spread::kDispatched || !options.group) return false;
  return static_cast<int64_t>(prompt) % options.group->size() != options.group->rank();
}

Status answer_own(Model& model, const ModelOptions& model_options, const Tokenizer& tokenizer,
                  const std::vector<std::string>& stops, GenerateOptions generating,
                  std::vector<Answer>& answers) {
  for (size_t i = 0; i < answers.size() && !interrupted(); ++i) {
    if (is_elsewhere(i, model_options)) continue;
    AnswerText text(tokenizer, nullptr, stops);
    MORACLE_CHECK(text.follow(answers[i].prompt));
    Status decoded;
    generating.on_token = [&](int32_t id) {
      if (const auto piece = text.push(id); !piece) decoded = piece.error();
      return decoded.ok() && !interrupted() && !text.stopped();
    };
    MORACLE_TRY(Generation done, generate(model, answers[i].prompt, generating));
    MORACLE_CHECK(decoded);
    if (text.stopped()) done.stop_reason = "stop";
    answers[i].ids = done.ids;
    answers[i].reason = static_cast<int32_t>(
        std::find(std::begin(kReasons), std::end(kReasons), done.stop_reason) - kReasons);
  }
  return model.rest();
}

// After this, every rank has all answers.
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

Result<std::string> text_of(const Answer& answer, const Tokenizer& tokenizer,
                            const std::vector<std::string>& stops) {
  AnswerText text(tokenizer, nullptr, stops);
  MORACLE_CHECK(text.follow(answer.prompt));
  std::string all;
  for (const int32_t id : answer.ids) {
    MORACLE_TRY(const std::string piece, text.push(id));
    all += piece;
  }
  return all + text.finish(answer.reason == 0);
}

Status show_answers(const std::vector<Answer>& answers, const Tokenizer& tokenizer,
                    const std::vector<std::string>& stops, const Model& model,
                    const Checkpoint& checkpoint, bool as_json) {
  Json all = Json::array();
  for (size_t i = 0; i < answers.size(); ++i) {
    const Answer& answer = answers[i];
    MORACLE_TRY(const std::string text, text_of(answer, tokenizer, stops));
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
  CLI_TRY(const GenerationConfig config, GenerationConfig::open(checkpoint, &tokenizer));
  CLI_TRY(ModelOptions model_options, options.model.options());
  CLI_TRY(GenerateOptions generating, options.generating(config, tokenizer));
  if (Status joined = options.model.join(model_options); !joined) return fail(joined.error());
  if (Status added = options.speculation.add_to(model_options, checkpoint); !added)
    return fail(added.error());
  CLI_TRY(std::vector<Answer> answers, encoded(options, tokenizer, model_options.group));
  RoutingFile routing(options.routing_statistics);
  if (Status good = routing.begin(model_options); !good) return fail(good.error());
  ProgressBar loading("loading");
  model_options.progress = loading.callback();
  CLI_TRY(Model model, Model::load(checkpoint, model_options));
  loading.clear();
  if (!options.model.json) {
    show_choices(model, checkpoint);
    std::cerr << not_followed_text(config);
  }
  generating.sampling.excluded_ids = tokenizer.ids_without_token(model.vocab_size());
  const std::vector<std::string> stops = options.stop_strings(config);
  Status done = answer_own(model, model_options, tokenizer, stops, generating, answers);
  if (done) done = gather(model_options, answers);
  if (done) done = routing.write(model);
  if (done) done = show_answers(answers, tokenizer, stops, model, checkpoint, options.model.json);
  if (!done) return fail(done.error());
  if (!std::cout) return fail_output();
  return interrupted() ? kFailed : kDone;
}

}  // namespace moracle::cli
