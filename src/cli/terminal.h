// Output for people: aligned tables, sizes, ranges, a progress bar, colour if it is visible.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "moracle/base.h"

namespace moracle::cli {

/// Rows of cells with aligned columns; UTF-8 counts by characters. Cells may hold text from files,
/// so they are made printable.
class Table {
 public:
  void row(std::vector<std::string> cells);
  /// Puts two spaces before each row and between columns. Columns in `right` (by index) align
  /// right.
  std::string text(const std::vector<size_t>& right = {}) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// Makes each line of the text printable.
std::string printable_lines(const std::string& text);
/// "4.9 MB": powers of ten, as disks and files are sold.
std::string megabytes(int64_t bytes);
/// "12.3", with `digits` digits after the point.
std::string rounded(double value, int digits = 1);
/// {0, 1, 2, 5} → "0–2, 5"
std::string ranges(const std::vector<int64_t>& numbers);
/// Printable text, in bold if stdout (or stderr) is a terminal and NO_COLOR is not set.
std::string bold(const std::string& text, bool on_stderr = false);

/// A line on stderr that shows the progress of long work: only on a terminal, and only after one
/// second. Also checks for Ctrl-C: check() is false after it was pressed.
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

/// Peak memory of this process, in bytes.
int64_t peak_memory_bytes();

}  // namespace moracle::cli
