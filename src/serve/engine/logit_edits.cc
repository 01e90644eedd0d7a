#include "serve/engine/logit_edits.h"

namespace moracle::serve {

LogitEditor::LogitEditor(LogitEdits edits, std::span<const int32_t> prompt)
    : edits_(std::move(edits)) {
  if (edits_.repetition != 1) in_prompt_.insert(prompt.begin(), prompt.end());
}

void LogitEditor::apply(std::span<float> logits) const {
  const auto size = static_cast<int32_t>(logits.size());
  for (const auto& [id, bias] : edits_.bias) {
    if (id < size) logits[id] += bias;
  }
  const auto repeat = [&](int32_t id) {
    if (id >= size) return;
    float& logit = logits[id];
    logit = logit > 0 ? logit / edits_.repetition : logit * edits_.repetition;
  };
  if (edits_.repetition != 1) {
    for (const int32_t id : in_prompt_) repeat(id);
    for (const auto& [id, count] : counts_) {
      if (!in_prompt_.contains(id)) repeat(id);
    }
  }
  for (const auto& [id, count] : counts_) {
    if (id < size) logits[id] -= edits_.frequency * static_cast<float>(count) + edits_.presence;
  }
}

}  // namespace moracle::serve
