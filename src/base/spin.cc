#include "base/spin.h"

#include <algorithm>

namespace moracle {

void Spin::learn(std::chrono::nanoseconds waited) {
  // A longer wait is no pause between two operations: the partner does other work, or has no CPU.
  constexpr std::chrono::microseconds kShort{100};
  constexpr int kFewest = 200;
  pauses_ = std::min(most_, waited < kShort ? 4 * pauses_ : kFewest);
}

}  // namespace moracle
