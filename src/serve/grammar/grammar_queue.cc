#include "serve/grammar/grammar_queue.h"

namespace moracle::serve {

GrammarQueue::GrammarQueue(std::shared_ptr<const GrammarEngine> engine)
    : engine_(std::move(engine)) {
  for (size_t i = 0; engine_ && i < kThreads; ++i) threads_.emplace_back([this] { run(); });
}

bool GrammarQueue::add(GrammarText source, std::function<void(const CompiledGrammar&)> done) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || threads_.empty() || waiting_.size() >= kMaxWaiting) return false;
    waiting_.push_back({std::move(source), std::move(done)});
  }
  changed_.notify_one();
  return true;
}

void GrammarQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  for (const Work& work : waiting_)
    work.done(Error{ErrorKind::kCancelled, "", "", "a running server", "it is stopping"});
  waiting_.clear();
}

void GrammarQueue::run() {
  for (;;) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopped_ || !waiting_.empty(); });
      if (stopped_) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work.done(engine_->compile(work.source));
  }
}

}  // namespace moracle::serve
