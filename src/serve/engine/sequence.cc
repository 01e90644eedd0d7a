#include "serve/engine/sequence.h"

#include <algorithm>

#include "base/try.h"

namespace moracle::serve {

Result<Sequence> Sequence::make(Job job, const Tokenizer& tokenizer) {
  StoppingTokenStream stream(tokenizer, job.stop_strings);
  if (job.continues_prompt) MORACLE_CHECK(stream.follow(job.prompt));
  Sampler sampler(job.sampling);
  LogitEditor editor(job.edits, job.prompt, job.stop_ids);
  std::vector<int32_t> tokens = job.prompt;
  std::unique_ptr<GrammarMatcher> matcher;
  if (job.grammar) {
    MORACLE_TRY(matcher, job.grammar->start());
  }
  return Sequence{std::move(job),    std::move(tokens), std::move(sampler),
                  std::move(editor), std::move(stream), std::move(matcher)};
}

Status Sequence::edit(std::span<float> logits) {
  editor.apply(logits);
  return matcher ? matcher->mask(logits) : Status();
}

bool Sequence::ends_with_last_token() const {
  return num_new() >= job.max_tokens || is_stop_id(tokens.back());
}

bool Sequence::is_stop_id(int32_t id) const {
  return std::find(job.stop_ids.begin(), job.stop_ids.end(), id) != job.stop_ids.end();
}

Result<Event> Sequence::answer() {
  const int32_t id = tokens.back();
  editor.add(id);
  if (matcher) MORACLE_CHECK(matcher->accept(id));
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
