#include "serve/engine/sequence.h"

#include <time.h>

#include <algorithm>

#include "base/text.h"
#include "base/try.h"

namespace moracle::serve {
namespace {

// Processor time of this thread: on a loaded machine a grammar must not fail for the time that
// others take.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

Result<Sequence> Sequence::make(Job job, const Tokenizer& tokenizer, int64_t vocab_size) {
  StoppingTokenStream stream(tokenizer, job.stop_strings);
  if (job.continues_prompt) MORACLE_CHECK(stream.follow(job.prompt));
  Sampler sampler(job.sampling);
  LogitEditor editor(job.edits, job.prompt, job.stop_ids);
  std::vector<int32_t> tokens = job.prompt;
  std::unique_ptr<GrammarMatcher> matcher;
  if (job.grammar) {
    MORACLE_TRY(matcher, job.grammar->start());
  }
  std::optional<ReasoningBudget> budget;
  if (job.reasoning) budget.emplace(*job.reasoning);
  const bool is_constrained = job.grammar_after.empty();
  Sequence sequence{std::move(job),    std::move(tokens), std::move(sampler),
                    std::move(editor), std::move(stream), std::move(matcher)};
  if (sequence.matcher) sequence.mask = TokenMask(vocab_size);
  sequence.budget = std::move(budget);
  sequence.is_constrained = is_constrained;
  sequence.tokenizer = &tokenizer;
  return sequence;
}

Status Sequence::prepare_mask() {
  if (!needs_mask()) return {};
  if (is_constrained) {
    MORACLE_CHECK(check_grammar_time());
    const double start = thread_seconds();
    const Status filled = matcher->fill(mask);
    grammar_seconds += thread_seconds() - start;
    if (!filled) {
      Error error = filled.error();
      error.place = job.grammar_place;
      return error;
    }
  } else {
    // The text must not end before the grammar begins.
    mask.allow_all();
    for (const int32_t id : job.stop_ids) mask.forbid(id);
  }
  mask.settle();
  has_mask = mask.num_allowed() > 0;
  if (has_mask) return {};
  return Error{ErrorKind::kUnsupported, "", job.grammar_place, "a token that the grammar allows",
               "the model has none"};
}

// Ambiguous grammars (root ::= root root | "a") have derivations that grow with every token. The
// step waits for all its masks, so that all other sequences would wait.
Status Sequence::check_grammar_time() const {
  constexpr double kSeconds = 2, kSecondsPerToken = 0.02;
  if (grammar_seconds < kSeconds + kSecondsPerToken * static_cast<double>(num_new())) return {};
  return Error{ErrorKind::kUnsupported, "", job.grammar_place,
               "rules that match a text in one way; ambiguous ones grow with every token",
               str("it took ", grammar_seconds, " s of a core for ", num_new(), " tokens")};
}

bool Sequence::ends_with_last_token() const {
  return num_new() >= job.max_tokens || is_stop_id(tokens.back());
}

bool Sequence::is_stop_id(int32_t id) const {
  return std::find(job.stop_ids.begin(), job.stop_ids.end(), id) != job.stop_ids.end();
}

std::string Sequence::forbidding_fields() const {
  const LogitEdits& edits = job.edits;
  std::string fields;
  const auto add = [&](bool is_set, const std::string& name) {
    if (is_set) fields += (fields.empty() ? "" : ", ") + name;
  };
  const std::string& grammar = job.grammar_place;
  add(matcher && is_constrained, grammar);
  add(matcher && !is_constrained, grammar + " (after the reasoning)");
  add(budget && budget->forces(), "the budget of reasoning");
  add(!edits.bad_words_ids.empty(), "bad_words");
  add(edits.min_tokens > 0 || edits.min_length > 0, "min_tokens");
  add(edits.no_repeat_ngram_size > 0, "no_repeat_ngram_size");
  add(!edits.suppress_tokens.empty(), "suppress_tokens");
  add(!edits.begin_suppress_tokens.empty(), "begin_suppress_tokens");
  return ": together these forbid all tokens: " + fields + "; leave one out";
}

Status Sequence::follow_reasoning(int32_t id) {
  MORACLE_TRY(const std::string text, tokenizer->decode({&id, 1}));
  if (budget) budget->add(id, text);
  if (is_constrained) return {};
  before_grammar += text;
  is_constrained = before_grammar.find(job.grammar_after) != std::string::npos;
  has_mask = has_mask && !is_constrained;
  if (before_grammar.size() > job.grammar_after.size())
    before_grammar.erase(0, before_grammar.size() - job.grammar_after.size());
  return {};
}

Result<Event> Sequence::answer() {
  const int32_t id = tokens.back();
  editor.add(id);
  if (matcher && is_constrained) {
    const double start = thread_seconds();
    MORACLE_CHECK(matcher->accept(id));
    grammar_seconds += thread_seconds() - start;
    has_mask = false;
  }
  if (budget || !is_constrained) MORACLE_CHECK(follow_reasoning(id));
  Event event;
  event.scores = std::move(scores);
  const bool is_shown =
      std::find(job.shown_ids.begin(), job.shown_ids.end(), id) != job.shown_ids.end();
  MORACLE_TRY(event.text, stream.push(id, !is_shown));
  if (is_stop_id(id) || stream.stopped())
    event.finish = Finish::kStop;
  else if (num_new() >= job.max_tokens)
    event.finish = Finish::kLength;
  if (event.finish != Finish::kNone) event.text += stream.finish();
  if (stream.stopped()) {
    event.finish = Finish::kStop;
    event.stop_string = stream.stop_string();
  }
  return event;
}

}  // namespace moracle::serve
