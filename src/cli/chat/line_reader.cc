#include "chat/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "command.h"

namespace moracle::cli {
namespace {

constexpr int kWaitMilliseconds = 100;
constexpr size_t kLongestLine = size_t{64} << 20;

Error unreadable_input(ErrorKind kind, std::string need, std::string fact) {
  return {kind, "", "standard input", std::move(need), std::move(fact)};
}

}  // namespace

Result<std::optional<std::string>> LineReader::next() {
  for (;;) {
    const size_t end = held_.find('\n', searched_);
    if (end != std::string::npos || (ended_ && !held_.empty())) {
      std::string line = held_.substr(0, end);
      held_.erase(0, end == std::string::npos ? end : end + 1);
      searched_ = 0;
      if (line.ends_with('\r')) line.pop_back();
      return std::optional(std::move(line));
    }
    if (ended_) return std::optional<std::string>();
    searched_ = held_.size();
    if (held_.size() > kLongestLine) {
      return unreadable_input(ErrorKind::kBadFile, str("lines of at most ", kLongestLine, " bytes"),
                              "one is longer");
    }
    if (interrupted()) {
      held_.clear();
      searched_ = 0;
      return std::optional<std::string>();
    }
    pollfd ready{STDIN_FILENO, POLLIN, 0};
    if (::poll(&ready, 1, kWaitMilliseconds) <= 0) continue;
    char piece[4096];
    const ssize_t count = ::read(STDIN_FILENO, piece, sizeof piece);
    if (count > 0) held_.append(piece, static_cast<size_t>(count));
    ended_ = count == 0;
    if (count < 0 && errno != EINTR && errno != EAGAIN)
      return unreadable_input(ErrorKind::kIo, "to be readable", std::strerror(errno));
  }
}

}  // namespace moracle::cli
