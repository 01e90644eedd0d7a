#include "token_iterator.h"

#include "calls.h"

namespace moracle::python {

TokenIterator::TokenIterator(std::shared_ptr<LoadedModel> loaded, std::vector<int32_t> prompt,
                             GenerateOptions options, bool as_text)
    : loaded_(std::move(loaded)), as_text_(as_text) {
  if (as_text_) stream_.emplace(loaded_->tokens());
  Model& model = *loaded_->model;
  options.on_token = [this](int32_t id) {
    const std::lock_guard lock(mutex_);
    ids_.push_back(id);
    changed_.notify_one();
    return !stop_;
  };
  options.on_prompt = [this](int64_t, int64_t) { return !stop_; };
  thread_ = std::thread([this, &model, prompt = std::move(prompt), options = std::move(options)] {
    Result<Generation> generation = generate(model, prompt, options);
    const std::lock_guard lock(mutex_);
    result_.emplace(std::move(generation));
    changed_.notify_one();
  });
}

// A forked child has no such thread to wait for.
TokenIterator::~TokenIterator() {
  if (is_forked())
    thread_.detach();
  else
    close();
}

nb::object TokenIterator::next() {
  while (const std::optional<int32_t> id = take()) {
    if (!as_text_) return nb::cast(*id);
    const std::string piece = value_of(stream_->push(*id));
    if (!piece.empty()) return nb::cast(piece);
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

// The next id; nothing at the end. Asks for Ctrl-C while it waits.
std::optional<int32_t> TokenIterator::take() {
  check_not_forked();
  for (;;) {
    {
      const nb::gil_scoped_release released;
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(20),
                        [&] { return !ids_.empty() || result_.has_value(); });
      if (!ids_.empty()) {
        const int32_t id = ids_.front();
        ids_.pop_front();
        return id;
      }
      if (result_) return {};
    }
    check_signals();
  }
}

}  // namespace moracle::python
