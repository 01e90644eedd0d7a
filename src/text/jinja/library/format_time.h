// strftime with English names, independent of the process's locale.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "moracle/base.h"

namespace moracle::jinja {

std::tm local_time_now();
/// Formats `time`. Errors: a directive other than %Y %y %m %d %e %H %I %M %S %p %j %b %h %B %a %A
/// %F %T %D %R %% and these with '-' for no padding (as %-d).
Result<std::string> format_time(std::string_view format, const std::tm& time);

}  // namespace moracle::jinja
