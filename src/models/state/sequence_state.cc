#include "models/state/sequence_state.h"

#include "base/text.h"
#include "base/try.h"

namespace moracle {

Status SequenceState::begin_step() {
  if (!pool_) return {};
  MORACLE_CHECK(pool_->grow(copies_, 2));
  checkpoint_ = {};
  return {};
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
