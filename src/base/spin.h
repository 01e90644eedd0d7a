// Spinning before sleeping: how long a thread watches for an event before the system puts it to
// sleep.
#pragma once

#include <chrono>

namespace moracle {

/// Learns from its own waits. While waits are short, the thread spins through them. After each long
/// wait it spins less, until waits are short again. A thread whose partner does not run, because
/// another process has its CPU, then leaves its own CPU to others. (Two processes with two threads
/// each on two cores: 10 s instead of 19 to 24 s for a test with many short jobs. A shorter limit
/// for short waits gives 6 s there, but costs a layer on 16 quiet cores 4 to 9 %: its threads do
/// not finish together.)
class Spin {
 public:
  /// `most` pauses; 0: never spins.
  explicit Spin(int most) : most_(most), pauses_(most) {}

  /// Waits for done() to become true. `sleep` is called until it is, once the spinning is over.
  template <class Done, class Sleep>
  void wait(const Done& done, const Sleep& sleep) {
    if (done()) return;
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < pauses_; ++i) {
      pause();
      if (done()) return;
    }
    while (!done()) sleep();
    learn(std::chrono::steady_clock::now() - began);
  }

  int pauses() const { return pauses_; }

 private:
  /// After a wait that spinning did not cover.
  void learn(std::chrono::nanoseconds waited);
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  int most_;
  int pauses_;
};

}  // namespace moracle
