// moracle run --chat without a prompt: a conversation over standard input, one turn per line.
#include <unistd.h>

#include <iostream>

#include "base/printable.h"
#include "base/text.h"
#include "base/utf8.h"
#include "chat/answer_text.h"
#include "chat/chat_history.h"
#include "chat/line_reader.h"
#include "options/run_options.h"
#include "plan_text.h"
#include "process.h"
#include "ranks/routing_file.h"
#include "terminal.h"

namespace moracle::cli {
namespace run_conversation_verb {
namespace {

class Conversation {
 public:
  Conversation(const Tokenizer& tokenizer, Model& model, GenerateOptions generate,
               std::vector<std::string> stops, ChatHistory history, KvCache cache)
      : tokenizer_(tokenizer),
        model_(model),
        history_(std::move(history)),
        kept_{std::move(cache)},
        generate_(std::move(generate)),
        stops_(std::move(stops)) {
    generate_.sampling.excluded_ids = tokenizer.ids_without_token(model.vocab_size());
    generate_.kept = &kept_;
  }

  /// Runs turns until the end of input. Errors: those of a turn; on a terminal it prints them and
  /// continues.
  Status run();

 private:
  Result<std::optional<std::string>> read(const std::string& prompt);
  Status turn(const std::string& text);
  Result<std::vector<serve::ToolCall>> answer();
  Status ask_results(const std::vector<serve::ToolCall>& calls);
  void show_figures(int64_t prompt_tokens, const Generation& generation) const;

  const bool terminal_ = ::isatty(STDIN_FILENO) != 0;
  const Tokenizer& tokenizer_;
  Model& model_;
  ChatHistory history_;
  KeptSequence kept_;
  GenerateOptions generate_;
  const std::vector<std::string> stops_;
  LineReader lines_;
  bool ended_ = false;  // end of input, or SIGTERM
};

// Reads the next question. A backslash at a line's end continues it on the next line. Reports and
// skips lines that are not UTF-8. Empty: end of input.
Result<std::optional<std::string>> Conversation::read(const std::string& prompt) {
  std::string text;
  for (bool first = true;;) {
    if (terminal_) std::cerr << (first ? prompt : "… ") << std::flush;
    MORACLE_TRY(const std::optional<std::string> line, lines_.next());
    if (!line && terminal_ && forget_ctrl_c() && !interrupted()) {
      std::cerr << "\n";  // Ctrl-C discards the typed line
      text.clear();
      first = true;
      continue;
    }
    if (!line) {
      if (terminal_) std::cerr << "\n";
      ended_ = true;
      return line;
    }
    text += *line;
    first = !text.ends_with('\\');
    if (!first) {
      text.back() = '\n';
    } else if (const auto bad = first_invalid_utf8(text)) {
      fail({ErrorKind::kBadFile, "", "standard input", "lines of valid UTF-8",
            str("byte ", *bad, " of this one is not part of a character; it is skipped")});
      text.clear();
    } else {
      return std::optional(std::move(text));
    }
  }
}

Status Conversation::run() {
  if (terminal_)
    std::cerr << "  Ctrl-C stops an answer, Ctrl-D ends, /reset forgets the conversation, \\ at "
                 "the end of a line continues it\n";
  while (!ended_) {
    MORACLE_TRY(const std::optional<std::string> text, read("> "));
    if (!text || text->empty()) continue;
    if (*text == "/reset") {
      history_.shrink(0);
      continue;
    }
    const size_t before = history_.size();
    const Status taken = turn(*text);
    if (taken) continue;
    history_.shrink(before);
    if (!terminal_ || interrupted() || !std::cout) return taken;
    fail(taken.error());
  }
  if (!interrupted()) return {};
  return Error{ErrorKind::kCancelled, "", "", "", "stopped on request"};
}

// Runs one turn: a question, and answers until one has no tool call.
Status Conversation::turn(const std::string& text) {
  MORACLE_CHECK(history_.ask(text));
  for (;;) {
    MORACLE_TRY(const std::vector<serve::ToolCall> calls, answer());
    if (calls.empty() || ended_) return {};
    MORACLE_CHECK(ask_results(calls));
    if (ended_) return {};
  }
}

// Prints each tool call, and reads its result from the next line.
Status Conversation::ask_results(const std::vector<serve::ToolCall>& calls) {
  for (const serve::ToolCall& call : calls) {
    std::cout << call.name << " " << printable(call.arguments) << "\n" << std::flush;
    MORACLE_TRY(const std::optional<std::string> result,
                read(str("result of ", printable(call.name), "> ")));
    if (!result) return {};
    MORACLE_CHECK(history_.give_result(call, *result));
  }
  return {};
}

// Generates and prints the next answer. Returns its tool calls.
Result<std::vector<serve::ToolCall>> Conversation::answer() {
  MORACLE_TRY(const std::string prompt, history_.prompt());
  MORACLE_TRY(const std::vector<int32_t> ids, tokenizer_.encode(prompt));
  AnswerText shown(tokenizer_, &history_, stops_);
  ProgressBar reading("reading the prompt");
  std::string text;
  const auto emit = [&](const std::string& piece) {
    text += piece;
    std::cout << piece << std::flush;
  };
  Status decoded;
  generate_.on_prompt = reading.callback();
  generate_.on_token = [&](int32_t id) {
    reading.clear();
    const Result<std::string> piece = shown.push(id);
    if (piece)
      emit(*piece);
    else
      decoded = piece.error();
    return decoded.ok() && !interrupted() && std::cout.good() && !shown.stopped();
  };
  MORACLE_TRY(Generation generation, generate(model_, ids, generate_));
  reading.clear();
  MORACLE_CHECK(decoded);
  emit(shown.finish(generation.stop_reason == "eos"));
  if (shown.stopped()) generation.stop_reason = "stop";
  if (!text.ends_with('\n')) std::cout << "\n" << std::flush;
  if (!std::cout) {
    return Error{ErrorKind::kIo, "", "standard output", "to accept the whole output",
                 "it is full or closed"};
  }
  show_figures(static_cast<int64_t>(ids.size()), generation);
  forget_ctrl_c();
  ended_ = ended_ || interrupted();
  // Keep the text of an interrupted answer. Drop the question if there is no text.
  if (generation.ids.empty())
    history_.shrink(history_.size() - 1);
  else
    history_.answer(text, shown.calls());
  return shown.calls();
}

void Conversation::show_figures(int64_t prompt_tokens, const Generation& generation) const {
  const auto generated = static_cast<int64_t>(generation.ids.size());
  const bool stopped = generation.stop_reason == "cancelled";
  const std::string drafts = drafts_text(generation.speculation, generation.generation_seconds);
  std::cerr << "  prompt " << prompt_tokens << " tokens (" << generation.reused_tokens
            << " in the cache), "
            << rate(prompt_tokens - generation.reused_tokens, generation.prompt_seconds)
            << " tokens/s; answer " << generated << " tokens, "
            << rate(generated - 1, generation.generation_seconds) << " tokens/s, stopped by "
            << (stopped ? "request" : generation.stop_reason)
            << (drafts.empty() ? "" : "; " + drafts) << "\n";
}

Status check(const RunOptions& options) {
  if (options.chat && !options.model.json) return {};
  return Error{ErrorKind::kInvalidArgument, "", "-p,--prompt",
               options.chat ? "a prompt, or --prompt-file, with --json"
                            : "a prompt, or --prompt-file; or --chat for a conversation",
               "it is missing"};
}

}  // namespace
}  // namespace run_conversation_verb

int run_conversation(const RunOptions& options) {
  using run_conversation_verb::Conversation;
  if (const Status good = run_conversation_verb::check(options); !good) return fail(good.error());
  CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(options.model.folder));
  CLI_TRY(const Tokenizer tokenizer, Tokenizer::open(options.model.folder));
  CLI_TRY(const GenerationConfig config, GenerationConfig::open(checkpoint, &tokenizer));
  CLI_TRY(ChatHistory history,
          ChatHistory::open(options.model.folder, options.system, options.tools));
  CLI_TRY(GenerateOptions generating, options.generating(config, tokenizer));
  ProgressBar loading("loading");
  CLI_TRY(ModelOptions model_options, options.model.options());
  if (Status added = options.speculation.add_to(model_options, checkpoint); !added)
    return fail(added.error());
  RoutingFile routing(options.routing_statistics);
  if (Status good = routing.begin(model_options); !good) return fail(good.error());
  model_options.progress = loading.callback();
  CLI_TRY(Model model, Model::load(checkpoint, model_options));
  loading.clear();
  show_choices(model, checkpoint);
  std::cerr << not_followed_text(config);
  if (!options.max_tokens && !config.max_tokens) generating.max_tokens = model.max_context();
  CLI_TRY(KvCache cache, model.make_cache(model.max_context()));
  let_ctrl_c_stop_answers();
  Conversation conversation(tokenizer, model, std::move(generating), options.stop_strings(config),
                            std::move(history), std::move(cache));
  const Status talked = conversation.run();
  const Status written = routing.write(model);
  if (!talked) return fail(talked.error());
  return written ? kDone : fail(written.error());
}

}  // namespace moracle::cli
