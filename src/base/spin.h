// Spinning before sleeping: how a thread watches for an event before the system puts it to sleep.
#pragma once

#include <thread>

namespace moracle {

/// Waits for done() to become true: spins for up to `pauses` pauses of the CPU, then calls sleep()
/// until done() is true. While it spins, it offers its CPU to other threads every 64 pauses. On a
/// quiet machine that costs nothing; on a busy one the thread that it waits for may need that CPU.
/// (Two processes with two threads each on two cores: 5 to 6 s instead of 19 to 24 s for a test
/// with many short jobs.)
template <class Done, class Sleep>
void spin_then_sleep(int pauses, const Done& done, const Sleep& sleep) {
  constexpr int kBetweenOffers = 64;
  for (int i = 1; i <= pauses; ++i) {
    if (done()) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (i % kBetweenOffers == 0) std::this_thread::yield();
  }
  while (!done()) sleep();
}

}  // namespace moracle
