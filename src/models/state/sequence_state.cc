#include "models/state/sequence_state.h"

#include "base/text.h"
#include "base/try.h"

namespace moracle {

Status SequenceState::begin_step() {
  if (!pool_) return {};
  MORACLE_CHECK(pool_->grow(copies_, 2));
  const size_t written = now_ == 0 ? 1 : 0;
  if (is_shared_[written]) {
    std::vector<std::byte*> fresh;
    MORACLE_CHECK(pool_->grow(fresh, 1));
    pool_->release(copies_[written]);
    copies_[written] = fresh[0];
    is_shared_[written] = false;
  }
  checkpoint_ = {};
  return {};
}

std::byte* SequenceState::share() {
  std::byte* const state = before();
  if (state == nullptr) return nullptr;
  pool_->share(state);
  is_shared_[now_] = true;
  return state;
}

void SequenceState::restore(std::byte* state) {
  pool_->shrink(copies_, 0);
  copies_.push_back(state);
  pool_->share(state);
  is_shared_[0] = true;
  is_shared_[1] = false;
  now_ = 0;
  checkpoint_ = {};
}

Result<std::byte*> SequenceState::restore_new() {
  MORACLE_CHECK(pool_->grow(copies_, 1));
  now_ = 0;
  checkpoint_ = {};
  return copies_[0];
}

void SequenceState::end_step(int64_t length) {
  if (!pool_) return;
  checkpoint_ = {length, now_};
  now_ = now_ == 0 ? 1 : 0;
}

Status SequenceState::truncate(int64_t length, int64_t to) {
  if (!pool_ || to == length) return {};
  if (to == 0) {
    now_ = -1;
  } else if (to == checkpoint_.length) {
    now_ = checkpoint_.now;
  } else {
    const std::string before =
        checkpoint_.length > 0 ? str(checkpoint_.length, " (before the last step), ") : "";
    return Error{ErrorKind::kUnsupported, "", "cache length",
                 str("0, ", before, "or ", length,
                     ", because recurrent layers keep no state of other positions"),
                 str("the request is ", to)};
  }
  checkpoint_ = {};
  return {};
}

}  // namespace moracle
