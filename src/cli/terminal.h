// Terminal output: aligned tables, sizes, ranges, progress bar, colour.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "moracle/base.h"

namespace moracle::cli {

/// Rows of cells with aligned columns; UTF-8 counts by characters. Escapes control characters,
/// because cells may hold text from files.
class Table {
 public:
  void row(std::vector<std::string> cells);
  /// Formats the table with two spaces before each row and between columns. Right-aligns the
  /// columns in `right` (by index).
  std::string text(const std::vector<size_t>& right = {}) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// Escapes control characters in each line of a text.
std::string printable_lines(const std::string& text);
/// "4.9 MB": decimal units.
std::string megabytes(int64_t bytes);
/// "12.3", with `digits` digits after the point.
std::string rounded(double value, int digits = 1);
/// {0, 1, 2, 5} → "0–2, 5"
std::string ranges(const std::vector<int64_t>& numbers);
/// Escapes control characters. Bold if stdout (or stderr) is a terminal and NO_COLOR is not set.
std::string bold(const std::string& text, bool on_stderr = false);

/// Progress line on stderr, only on a terminal and after one second. check() returns false after
/// Ctrl-C.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar() { clear(); }
  bool check(int64_t done, int64_t total);
  void clear();
  Progress callback() {
    return [this](int64_t done, int64_t total) { return check(done, total); };
  }

 private:
  std::string label_;
  std::chrono::steady_clock::time_point start_, drawn_;
  bool visible_ = false;
  bool terminal_;
};

/// Peak resident memory of this process, in bytes.
int64_t peak_memory_bytes();

}  // namespace moracle::cli
