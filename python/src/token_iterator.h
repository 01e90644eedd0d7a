// Generation token by token, from a thread of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "loaded_model.h"
#include "text/stop_strings.h"

namespace moracle::python {

/// Tokens as they come. A thread generates ahead of the reader. It never holds the GIL, and it does
/// not wait for the reader, who may call the same model.
class TokenIterator {
 public:
  /// `as_text`: next() gives pieces of text instead of ids.
  TokenIterator(std::shared_ptr<LoadedModel> loaded, std::vector<int32_t> prompt,
                GenerateOptions options, std::vector<std::string> stops, bool as_text);
  ~TokenIterator();

  /// Waits for the next id or piece of text. Throws stop_iteration at the end, and the error of the
  /// generation.
  nb::object next();
  /// Stops the generation and waits for its thread.
  void close();
  /// "eos", "stop", "length", "cancelled"; empty while tokens come.
  std::string stop_reason();

 private:
  struct Token {
    int32_t id;
    std::string text;  // that it completes
  };
  std::optional<Token> take();

  std::shared_ptr<LoadedModel> loaded_;
  bool as_text_;
  std::optional<StoppingTokenStream> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Token> tokens_;  // not yet returned
  std::optional<Result<Generation>> result_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace moracle::python
