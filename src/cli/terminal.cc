#include "terminal.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "base/printable.h"
#include "command.h"

namespace moracle::cli {
namespace {

// Number of UTF-8 characters: all bytes except continuation bytes.
size_t width(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

bool coloured(int descriptor) {
  return ::isatty(descriptor) == 1 && std::getenv("NO_COLOR") == nullptr;
}

}  // namespace

void Table::row(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text(const std::vector<size_t>& right) const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - width(row[i]), ' ');
      const bool to_right = std::find(right.begin(), right.end(), i) != right.end();
      text += "  " + (to_right ? space + row[i] : row[i] + (i + 1 < row.size() ? space : ""));
    }
    text += "\n";
  }
  return text;
}

std::string printable_lines(const std::string& text) {
  std::string shown;
  for (size_t first = 0; first < text.size();) {
    const size_t end = text.find('\n', first);
    if (end == text.npos) return shown + printable(std::string_view(text).substr(first));
    shown += printable(std::string_view(text).substr(first, end - first)) + "\n";
    first = end + 1;
  }
  return shown;
}

std::string rounded(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return std::move(out).str();
}

std::string megabytes(int64_t bytes) {
  const double size = static_cast<double>(bytes);
  if (size >= 1e9) return rounded(size / 1e9, 2) + " GB";
  if (size >= 1e6) return rounded(size / 1e6) + " MB";
  return rounded(size / 1e3) + " kB";
}

std::string ranges(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(numbers[i]);
    if (last > i) text += "–" + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

std::string bold(const std::string& text, bool on_stderr) {
  const std::string shown = printable(text);
  if (!coloured(on_stderr ? STDERR_FILENO : STDOUT_FILENO)) return shown;
  return "\033[1m" + shown + "\033[0m";
}

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)),
      start_(std::chrono::steady_clock::now()),
      terminal_(::isatty(STDERR_FILENO) == 1) {}

bool ProgressBar::check(int64_t done, int64_t total) {
  using namespace std::chrono_literals;
  const auto now = std::chrono::steady_clock::now();
  if (terminal_ && total > 0 && now - start_ > 1s && now - drawn_ > 100ms) {
    constexpr int kCells = 30;
    const int filled = static_cast<int>(done * kCells / total);
    std::cerr << "\r" << label_ << " [" << std::string(filled, '#')
              << std::string(kCells - filled, '.') << "] " << done * 100 / total << " %"
              << std::flush;
    drawn_ = now;
    visible_ = true;
  }
  return !interrupted();
}

void ProgressBar::clear() {
  if (visible_) std::cerr << "\r\033[K" << std::flush;
  visible_ = false;
}

int64_t peak_memory_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace moracle::cli
