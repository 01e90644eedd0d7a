#include "text/jinja/library/format_time.h"

#include <utility>

#include "base/text.h"
#include "base/try.h"
#include "text/jinja/limits.h"

namespace moracle::jinja {

namespace {

constexpr std::string_view kMonths[] = {"January",   "February", "March",    "April",
                                        "May",       "June",     "July",     "August",
                                        "September", "October",  "November", "December"};
constexpr std::string_view kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                      "Thursday", "Friday", "Saturday"};

std::string padded(int value, size_t width, char pad) {
  std::string digits = std::to_string(value);
  if (pad != '-' && digits.size() < width) digits.insert(0, width - digits.size(), pad);
  return digits;
}

Result<std::string> directive(char letter, bool bare, const std::tm& time) {
  const char zero = bare ? '-' : '0';
  const auto month = kMonths[static_cast<size_t>(time.tm_mon) % 12];
  const auto day = kDays[static_cast<size_t>(time.tm_wday) % 7];
  switch (letter) {
    case 'Y':
      return padded(time.tm_year + 1900, 1, zero);
    case 'y':
      return padded(time.tm_year % 100, 2, zero);
    case 'm':
      return padded(time.tm_mon + 1, 2, zero);
    case 'd':
      return padded(time.tm_mday, 2, zero);
    case 'e':
      return padded(time.tm_mday, 2, bare ? '-' : ' ');
    case 'H':
      return padded(time.tm_hour, 2, zero);
    case 'I':
      return padded((time.tm_hour + 11) % 12 + 1, 2, zero);
    case 'M':
      return padded(time.tm_min, 2, zero);
    case 'S':
      return padded(time.tm_sec, 2, zero);
    case 'p':
      return std::string(time.tm_hour < 12 ? "AM" : "PM");
    case 'j':
      return padded(time.tm_yday + 1, 3, zero);
    case 'b':
    case 'h':
      return std::string(month.substr(0, 3));
    case 'B':
      return std::string(month);
    case 'a':
      return std::string(day.substr(0, 3));
    case 'A':
      return std::string(day);
    case '%':
      return std::string("%");
    default:
      break;
  }
  return unsupported(str("'strftime_now' with '%", bare ? "-" : "", std::string(1, letter), "'"));
}

}  // namespace

std::tm local_time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

Result<std::string> format_time(std::string_view format, const std::tm& time) {
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    const bool bare = i + 1 < format.size() && format[i + 1] == '-';
    i += bare ? 2 : 1;
    const char letter = i < format.size() ? format[i] : ' ';
    constexpr std::pair<char, std::string_view> kShort[] = {
        {'F', "%Y-%m-%d"}, {'T', "%H:%M:%S"}, {'D', "%m/%d/%y"}, {'R', "%H:%M"}};
    std::string_view expanded;
    for (const auto& [name, meaning] : kShort) {
      if (letter == name && !bare) expanded = meaning;
    }
    if (!expanded.empty()) {
      MORACLE_TRY(const std::string part, format_time(expanded, time));
      out += part;
    } else {
      MORACLE_TRY(const std::string part, directive(letter, bare, time));
      out += part;
    }
    if (out.size() > kMaxTextBytes) return limit_error("a long text from 'strftime_now'");
  }
  return out;
}

}  // namespace moracle::jinja
