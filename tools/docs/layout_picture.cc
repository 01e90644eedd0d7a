// Draws a sample. Each colour is a piece of 32 bytes, which a kernel loads at once.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "docs/sample.h"

namespace moracle::docs {
namespace {

constexpr int64_t kRows = Sample::kRows, kCols = Sample::kCols;
constexpr int64_t kPieceBytes = 32;
constexpr int64_t kFirstLines = 4;  // of memory that are drawn, and the first with padding

// In pixels. Rules and texts are grey, readable on white and black; codes are dark on pale colours.
constexpr int kLeft = 44, kTop = 58, kCellWidth = 31, kCellHeight = 17;
constexpr int kByteWidth = 28, kLineHeight = 26, kLineDistance = 31;
constexpr int kMemoryTop = kTop + kRows * kCellHeight + 44;
constexpr int kWidth = kLeft + kPieceBytes * kByteWidth + 8;
constexpr int kLegend = kLeft + kCols * kCellWidth + 36;
// Seven colours, so that panels of 8 or 16 memory lines do not repeat each other's colours.
constexpr const char* kColours[] = {"#f6b3b3", "#f9d3a0", "#f1ea98", "#bfe5a0",
                                    "#a0e0dc", "#b3c9f7", "#dfbbee"};
constexpr int64_t kNumColours = std::size(kColours);
constexpr std::string_view kStyle =
    "text{font:11px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;text-anchor:middle;"
    "fill:#1b1f24}.o{fill:#767c85}.l{text-anchor:start}.e{text-anchor:end}"
    ".t{font:bold 15px system-ui,sans-serif}.p{font:13px system-ui,sans-serif}"
    ".b text{font-weight:bold}.g{stroke:#0005;fill:none}";

std::string text(std::string_view classes, int64_t x, int64_t y, std::string_view content) {
  return str("<text class='", classes, "' x='", x, "' y='", y, "'>", content, "</text>\n");
}

/// The colour of the piece in which a code lies.
std::string_view colour(const Sample& sample, int64_t place) {
  return kColours[place * sample.size / (kPieceBytes * 8) % kNumColours];
}

/// Codes in a line of memory: 32 bytes, or 32 codes where more would not be legible.
int64_t per_line(const Sample& sample) {
  return std::min(kPieceBytes, kPieceBytes * 8 / sample.size);
}
int64_t num_lines(const Sample& sample) {
  return (sample.end() + per_line(sample) - 1) / per_line(sample);
}

std::string matrix(const Sample& sample) {
  std::string out;
  for (int64_t c = 0; c < kCols; ++c) {
    out += text("o", kLeft + c * kCellWidth + kCellWidth / 2, kTop - 6, str("c", c));
  }
  std::map<std::string_view, std::string> cells;  // by colour
  std::string places;
  for (int64_t r = 0; r < kRows; ++r) {
    const int64_t top = kTop + r * kCellHeight;
    out += text("o e", kLeft - 6, top + 13, str("r", r));
    places += str("<g transform='translate(0,", top + 13, ")'>");
    for (int64_t c = 0; c < kCols; ++c) {
      const int64_t place = sample.place(r, c), x = kLeft + c * kCellWidth;
      cells[colour(sample, place)] +=
          str("M", x, " ", top, "h", kCellWidth, "v", kCellHeight, "h-", kCellWidth);
      places += str("<text x='", x + kCellWidth / 2, "'>", place, "</text>");
    }
    places += "</g>\n";
  }
  for (const auto& [fill, path] : cells) {
    out += str("<path fill='", fill, "' d='", path, "'/>\n");
  }
  std::string grid;
  for (int64_t r = 0; r <= kRows; ++r) {
    grid += str("M", kLeft, " ", kTop + r * kCellHeight, "h", kCols * kCellWidth);
  }
  for (int64_t c = 0; c <= kCols; ++c) {
    grid += str("M", kLeft + c * kCellWidth, " ", kTop, "v", kRows * kCellHeight);
  }
  return out + places + str("<path class='g' d='", grid, "'/>\n");
}

/// One line of memory: in each cell the row above the column.
std::string memory_line(const Sample& sample, int64_t line, int64_t top) {
  const int64_t width = kPieceBytes * kByteWidth / per_line(sample);
  std::string rows, cols, cells;
  int64_t count = 0;
  for (; count < per_line(sample); ++count) {
    const int64_t place = line * per_line(sample) + count;
    if (place >= sample.end()) break;
    const int64_t x = kLeft + count * width;
    const auto code = sample.codes.find(place);
    if (code == sample.codes.end()) {
      cells += str("<rect x='", x, "' y='", top, "' width='", width, "' height='", kLineHeight,
                   "' fill='url(#padding)'/>\n");
    } else {
      rows += str("<text x='", x + width / 2, "'>", code->second.row, "</text>");
      cols += str("<text x='", x + width / 2, "'>", code->second.col, "</text>");
    }
  }
  std::string grid = str("M", kLeft, " ", top, "h", count * width, "v", kLineHeight, "H", kLeft);
  for (int64_t i = 0; i < count; ++i) {
    // Codes that share a byte have a shorter rule between them.
    const int inset = i * sample.size % 8 == 0 ? 0 : 8;
    grid += str("M", kLeft + i * width, " ", top + inset, "v", kLineHeight - 2 * inset);
  }
  return text("o e", kLeft - 6, top + 17, str(line * per_line(sample) * sample.size / 8)) +
         str("<rect x='", kLeft, "' y='", top, "' width='", count * width, "' height='",
             kLineHeight, "' fill='", colour(sample, line * per_line(sample)), "'/>\n", cells,
             "<g class='b'", " transform='translate(0,", top + 11, ")'>", rows, "</g>\n<g",
             " transform='translate(0,", top + 23, ")'>", cols, "</g>\n<path class='g' d='", grid,
             "'/>\n");
}

/// The first lines, and the first one with padding.
std::vector<int64_t> lines(const Sample& sample) {
  std::vector<int64_t> chosen;
  for (int64_t line = 0; line < std::min(num_lines(sample), kFirstLines); ++line) {
    chosen.push_back(line);
  }
  for (int64_t place = 0; place < sample.end(); ++place) {
    if (sample.codes.contains(place)) continue;
    if (place / per_line(sample) >= kFirstLines) chosen.push_back(place / per_line(sample));
    break;
  }
  return chosen;
}

std::string memory(const Sample& sample, int& bottom) {
  std::string out = text("o l p", kLeft, kMemoryTop - 12,
                         str("Memory from its first byte, ", per_line(sample) * sample.size / 8,
                             " bytes a line: the row in bold, below it the column"));
  int64_t top = kMemoryTop, last = -1;
  for (int64_t line : lines(sample)) {
    if (line != last + 1) {
      out += text("o l", kLeft, top + 8, "…");
      top += 18;
    }
    out += memory_line(sample, line, top);
    top += kLineDistance;
    last = line;
  }
  if (const int64_t bytes = sample.end() * sample.size / 8; last < num_lines(sample) - 1) {
    out += text("o l", kLeft, top + 8, str("… the last code ends with byte ", bytes - 1));
    top += 18;
  }
  bottom = static_cast<int>(top);
  return out;
}

/// How a number in the matrix becomes a byte.
std::vector<std::string> byte_of(const Sample& sample) {
  if (sample.size == 8) return {"place in memory: its byte"};
  if (sample.size > 8) return {str("place in memory: byte = number × ", sample.size / 8)};
  return {str("place in memory: byte = number / ", 8 / sample.size, ","),
          "of its codes the first in the low bits"};
}

std::string legend(const Sample& sample) {
  std::string out;
  int64_t y = kTop + 12;
  auto square = [&](int64_t x, int64_t width, std::string_view fill) {
    out += str("<rect x='", kLegend + x, "' y='", y - 12, "' width='", width,
               "' height='17' fill='", fill, "'/>\n");
  };
  auto explain = [&](const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      out += text("o l p", kLegend + 44, y, line);
      y += 18;
    }
    y += 8;
  };
  square(0, 17, kColours[0]);
  square(17, 17, kColours[1]);
  explain({"a colour: 32 bytes, an AVX2 register,", "a sector of GPU memory"});
  out += text("o", kLegend + 17, y, "17");
  explain(byte_of(sample));
  if (static_cast<int64_t>(sample.codes.size()) < sample.end()) {
    square(0, 34, "url(#padding)");
    explain({"padding"});
  }
  out += text("o l p", kLegend, y + 4, "Steps from (0, 0), in codes");
  y += 26;
  for (auto [r, c] : {std::pair{1, 0}, {16, 0}, {0, 1}, {0, 2}, {0, 8}}) {
    const int64_t step = sample.place(r, c) - sample.place(0, 0);
    out += text("o l", kLegend, y, str("to (", r, ", ", c, ")")) +
           text("o e", kLegend + 130, y, str(step));
    y += 18;
  }
  return out;
}

}  // namespace

std::string draw(const Sample& sample, std::string_view title) {
  int height = 0;
  const std::string below = memory(sample, height);
  return str("<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 ", kWidth, " ", height,
             "' width='", kWidth, "' height='", height, "' role='img'>\n<title>", title,
             "</title>\n<style>", kStyle,
             "</style>\n<defs><pattern id='padding' width='6' height='6' "
             "patternUnits='userSpaceOnUse' patternTransform='rotate(45)'><rect width='6' "
             "height='6' fill='#d9dce0'/><rect width='2' height='6' fill='#9aa0a8'/></pattern>"
             "</defs>\n",
             text("o l t", kLeft, 22, title), matrix(sample), legend(sample), below, "</svg>\n");
}

}  // namespace moracle::docs
