// Reads the logits that the draws of a step need, and computes the masks of grammars.
#include <algorithm>
#include <atomic>
#include <utility>

#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "kernels/kernel_device.h"
#include "serve/engine/engine.h"

namespace moracle::serve {

// Masks take 0.01 to 0.2 ms each. On a GPU they are computed here, while it runs the step.
void Engine::prepare_masks(std::span<const Chunk> chunks) {
  std::vector<Sequence*> sequences;
  for (const Chunk& chunk : chunks) {
    const auto at = sequences_.find(chunk.id);
    if (chunk.samples && at != sequences_.end()) sequences.push_back(&at->second);
  }
  if (prepare_masks(std::move(sequences))) profiler_.end("grammars");
}

// True if there were masks to compute. The draw repeats a mask that fails, and reports its error.
bool Engine::prepare_masks(std::vector<Sequence*> sequences) {
  std::erase_if(sequences, [](const Sequence* one) { return !one->needs_mask(); });
  on_all(static_cast<int64_t>(sequences.size()),
         [&](int64_t i, RowDrawer&) { (void)sequences[i]->prepare_mask().ok(); });
  return !sequences.empty();
}

// Calls work(i, drawer) for i in [0, count), each on any of the host's threads.
void Engine::on_all(int64_t count, const std::function<void(int64_t, RowDrawer&)>& work) {
  if (count == 0) return;
  ThreadPool& threads = kernel_device(model_.device()).host_threads();
  drawers_.resize(std::max<size_t>(drawers_.size(), threads.size()));
  if (count == 1) return work(0, drawers_[0]);
  std::atomic<int64_t> next{0};
  threads.run([&](int thread) {
    for (int64_t i = next++; i < count; i = next++) work(i, drawers_[thread]);
  });
}

// Number of largest logits to read of each row; 0: all. Reading rows again takes another pass over
// the output layer, so a device whose memory the host sees, and steps in which many rows or rows of
// drafts need all logits, read all at once.
int64_t Engine::candidates_of(std::span<const SequenceRows> sequences) const {
  // A row whose mask is not known yet. A model that follows its schema has an allowed token among
  // the first few.
  constexpr int64_t kUnmasked = 64;
  constexpr int64_t kMostAgain = 8;
  const bool is_visible = model_.device().host_visible();
  int64_t candidates = 1, again = 0;
  for (const SequenceRows& one : sequences) {
    const Sequence& sequence = sequences_.at(one.id);
    int64_t needs = RowDrawer::candidates(sequence, model_.vocab_size());
    if (needs == 0 && (one.drafts > 0 || ++again > kMostAgain)) return 0;
    if (is_visible && (needs == 0 || sequence.matcher)) return 0;
    if (sequence.matcher && (one.drafts > 0 || !leader_.masks_logits()))
      needs = std::max(needs, std::min(kUnmasked, model_.vocab_size()));
    candidates = std::max(candidates, needs);
  }
  const bool all_again = again == static_cast<int64_t>(sequences.size());
  return leader_.is_spread() || all_again ? 0 : candidates;
}

// The device applies the masks of the first rows; those behind drafts depend on them.
Result<RowLogits> Engine::read_rows(int64_t first, std::span<const SequenceRows> sequences) {
  const int64_t vocab_size = model_.vocab_size(), candidates = candidates_of(sequences);
  const int64_t num_rows = sequences.back().row + sequences.back().drafts + 1;
  std::vector<Sequence*> masked;
  if (candidates > 0 && leader_.masks_logits()) {
    for (const SequenceRows& one : sequences) {
      if (Sequence& sequence = sequences_.at(one.id); sequence.matcher) masked.push_back(&sequence);
    }
  }
  if (masked.empty()) return RowLogits::read(leader_, vocab_size, first, num_rows, candidates);
  prepare_masks(std::move(masked));
  const auto words = static_cast<size_t>(words_of_mask(vocab_size));
  allowed_.assign(static_cast<size_t>(num_rows) * words, ~uint32_t{0});
  for (const SequenceRows& one : sequences) {
    const Sequence& sequence = sequences_.at(one.id);
    if (sequence.has_mask && !sequence.forced_id())
      std::ranges::copy(sequence.mask.words(),
                        allowed_.begin() + one.row * static_cast<int64_t>(words));
  }
  MORACLE_TRY(const Model::TopKLogits largest,
              leader_.top_k_allowed_logits(first, num_rows, candidates, allowed_));
  return RowLogits::of(largest, vocab_size, first, candidates);
}

}  // namespace moracle::serve
