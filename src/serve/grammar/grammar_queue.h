// Compiles schemas on its own threads: a large schema takes about a second.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "serve/grammar/grammar.h"

namespace moracle::serve {

using CompiledGrammar = Result<std::shared_ptr<const Grammar>>;

class GrammarQueue {
 public:
  static constexpr size_t kThreads = 2, kMaxWaiting = 64;

  /// `engine` may be null if add() is never called.
  explicit GrammarQueue(std::shared_ptr<const GrammarEngine> engine);
  ~GrammarQueue() { stop(); }

  /// Queues a source. Calls `done` on another thread, with kCancelled after stop(). False: the
  /// queue is full, and `done` is not called.
  bool add(GrammarText source, std::function<void(const CompiledGrammar&)> done);
  /// Waits for running compilations, and cancels the queued ones.
  void stop();

 private:
  struct Work {
    GrammarText source;
    std::function<void(const CompiledGrammar&)> done;
  };
  void run();

  const std::shared_ptr<const GrammarEngine> engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> waiting_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace moracle::serve
