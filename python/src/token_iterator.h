// Streams tokens from a generation thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "loaded_model.h"
#include "text/stop_strings.h"

namespace moracle::python {

/// Iterator over generated tokens. A thread generates ahead of the reader, without the GIL and
/// without waiting, so the reader may call the same model.
class TokenIterator {
 public:
  /// `as_text`: next() returns text instead of ids.
  TokenIterator(std::shared_ptr<LoadedModel> loaded, std::vector<int32_t> prompt,
                GenerateOptions options, std::vector<std::string> stops, bool as_text);
  ~TokenIterator();

  /// Waits for the next id or text. Throws stop_iteration at the end, or the error of the
  /// generation.
  nb::object next();
  /// Stops the generation and joins its thread.
  void close();
  /// "eos", "stop", "length" or "cancelled"; empty while running.
  std::string stop_reason();

 private:
  struct Token {
    int32_t id;
    std::string text;  // text that the token completes
  };
  std::optional<Token> take();

  std::shared_ptr<LoadedModel> loaded_;
  bool as_text_;
  std::optional<StoppingTokenStream> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Token> tokens_;  // not returned yet
  std::optional<Result<Generation>> result_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;  // last member: it uses the others
};

}  // namespace moracle::python
