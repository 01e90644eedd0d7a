#include "token_iterator.h"

#include "calls.h"

namespace moracle::python {

TokenIterator::TokenIterator(std::shared_ptr<LoadedModel> loaded, std::vector<int32_t> prompt,
                             GenerateOptions options, std::vector<std::string> stops, bool as_text)
    : loaded_(std::move(loaded)), as_text_(as_text) {
  if (as_text_ || (!stops.empty() && loaded_->tokenizer))
    stream_.emplace(loaded_->tokens(), std::move(stops));
  Model& model = *loaded_->model;
  options.on_token = [this](int32_t id) {
    const std::lock_guard lock(mutex_);
    Result<std::string> text = stream_ ? stream_->push(id) : std::string();
    if (!text) {
      result_.emplace(text.error());
    } else {
      tokens_.push_back({id, *std::move(text)});
    }
    changed_.notify_one();
    return !stop_ && !result_ && !(stream_ && stream_->stopped());
  };
  options.on_prompt = [this](int64_t, int64_t) { return !stop_; };
  thread_ = std::thread([this, &model, prompt = std::move(prompt), options = std::move(options)] {
    Result<Generation> generation = generate(model, prompt, options);
    const std::lock_guard lock(mutex_);
    if (generation && stream_ && stream_->stopped()) generation->stop_reason = "stop";
    if (!result_) result_.emplace(std::move(generation));
    changed_.notify_one();
  });
}

// Do not join in a forked child: the thread exists only in the parent.
TokenIterator::~TokenIterator() {
  if (is_forked())
    thread_.detach();
  else
    close();
}

nb::object TokenIterator::next() {
  while (const std::optional<Token> token = take()) {
    if (!as_text_) return nb::cast(token->id);
    if (!token->text.empty()) return nb::cast(token->text);
  }
  if (!result_->ok()) throw Failure(result_->error());
  const std::string rest = as_text_ ? stream_->finish() : "";
  as_text_ = false;
  if (rest.empty()) throw nb::stop_iteration();
  return nb::cast(rest);
}

void TokenIterator::close() {
  const nb::gil_scoped_release released;
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

std::string TokenIterator::stop_reason() {
  const std::lock_guard lock(mutex_);
  return result_ && result_->ok() ? (*result_)->stop_reason : "";
}

// Waits for the next token; empty at the end. Checks for Ctrl-C while waiting.
std::optional<TokenIterator::Token> TokenIterator::take() {
  check_not_forked();
  for (;;) {
    {
      const nb::gil_scoped_release released;
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(20),
                        [&] { return !tokens_.empty() || result_.has_value(); });
      if (!tokens_.empty()) {
        Token token = std::move(tokens_.front());
        tokens_.pop_front();
        return token;
      }
      if (result_) return {};
    }
    check_signals();
  }
}

}  // namespace moracle::python
