#include "base/spin.h"

#include <algorithm>

namespace moracle {

void Spin::learn(std::chrono::nanoseconds waited) {
  // A longer wait is no pause between two operations: the partner does other work, or has no CPU.
  // One such wait happens on a quiet machine, too; several in turn do not.
  constexpr std::chrono::microseconds kShort{700};
  constexpr int kFewest = 200;
  pauses_ = waited < kShort ? std::min(most_, 4 * pauses_)
                            : std::max(std::min(most_, kFewest), pauses_ / 4);
}

}  // namespace moracle
