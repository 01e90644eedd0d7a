#include "process.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "command.h"

namespace moracle::cli {
namespace {

// After this many Ctrl-C during one answer, kill the process.
constexpr int kMostStops = 3;
volatile std::sig_atomic_t interrupt_count = 0;
volatile std::sig_atomic_t answers_stop = 0;  // set by let_ctrl_c_stop_answers()
volatile std::sig_atomic_t stop_count = 0;
extern "C" void on_interrupt(int signal) {
  if (signal == SIGINT && answers_stop != 0) {
    stop_count = stop_count + 1;
    if (stop_count <= kMostStops) return;
  }
  interrupt_count = interrupt_count + 1;
  if (interrupt_count > 1 || stop_count > kMostStops) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

// Prints one line on stderr without allocating: the process may be out of memory.
void say(std::string_view what, std::string_view reason, std::string_view advice) {
  char line[512];
  const int size =
      std::snprintf(line, sizeof line, "moracle: %.*s%.*s%.*s\n", static_cast<int>(what.size()),
                    what.data(), static_cast<int>(reason.size()), reason.data(),
                    static_cast<int>(advice.size()), advice.data());
  const auto length = std::min(static_cast<size_t>(std::max(size, 0)), sizeof line - 1);
  // Escape control characters: the reason may contain a file name.
  std::replace_if(
      line, line + length, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  if (length > 0) line[length - 1] = '\n';
  if (::write(STDERR_FILENO, line, length) < 0) return;
}

// Reports the current exception.
void say_exception() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    say("needs more memory; ", "the system refuses it",
        " (see the process's limit, ulimit -v, and --threads)");
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again)
      say("needs more threads; ", "the system refuses them", " (see ulimit -u, and --threads)");
    else
      say("unexpected error: ", error.what(), "; please report it with the command line");
  } catch (const std::exception& error) {
    say("unexpected error: ", error.what(), "; please report it with the command line");
  } catch (...) {
    say("unexpected error", "", "; please report it with the command line");
  }
}

[[noreturn]] void end_uncaught() {
  if (std::current_exception() != nullptr)
    say_exception();
  else if (std::uncaught_exceptions() > 0)  // terminated while threads were starting
    say("needs more memory or threads; ", "the system refuses them",
        " (see ulimit, and --threads)");
  else
    say("unexpected end", "", "; please report it with the command line");
  ::_exit(kFailed);
}

}  // namespace

bool interrupted() {
  return interrupt_count > 0 || stop_count > 0;
}

void let_ctrl_c_stop_answers() {
  answers_stop = 1;
}

bool forget_ctrl_c() {
  const bool pressed = stop_count > 0;
  stop_count = 0;
  return pressed;
}

void catch_signals() {
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
  std::signal(SIGXFSZ, SIG_IGN);  // a write at the file size limit returns an error instead
  std::signal(SIGPIPE, SIG_IGN);  // a write to a closed pipe returns an error instead
}

void fill_closed_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free descriptor, which is this one.
    ::open("/dev/null", stream == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
  }
}

int run_guarded(int (*work)(int argc, char** argv), int argc, char** argv) {
  std::set_terminate(end_uncaught);  // also for threads and noexcept functions
  try {
    return work(argc, argv);
  } catch (...) {
    say_exception();
    return kFailed;
  }
}

}  // namespace moracle::cli
